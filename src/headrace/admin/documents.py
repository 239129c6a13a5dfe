"""Stored records as documents for programs: ``--json`` prints them, ``.json`` pages hold them. Pure.

1. Jobs, workflows, queues and workers.
2. Acts, events, alarms and verbs on many jobs.
3. Limits.

Documents are not redacted: a page redacts the whole document.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict

from headrace.admin.alarms import AlarmRecord
from headrace.model import codec
from headrace.model.activity import Act, EventRecord
from headrace.model.codec import decode, readable
from headrace.model.hidden_values import hides, shown
from headrace.model.job_record import AttemptRecord, Record
from headrace.model.limit_rules import Concurrency, LimitState, Override, Rate
from headrace.model.notation import iso
from headrace.model.workflow import NodeRecord, WorkflowRecord
from headrace.protocol.operations import BulkOperation
from headrace.protocol.overviews import QueueFacts, RunnerFacts, WorkerFacts
from headrace.settings import HIDDEN

# The same times as integers: microseconds of server time, 0 when not reached.
_TIMES = "created_us due_us started_us finished_us expires_us"


def _document(record: Any, names: str) -> dict[str, Any]:
    """Fields by name. ``name@``: the time of ``name_us``; ``name?``: None where it is empty; ``as=name``: renamed."""
    facts: dict[str, Any] = {}
    for word in names.split():
        shown_as, _, name = word.rstrip("@?").rpartition("=")
        value = getattr(record, f"{name}_us" if word.endswith("@") else name)
        facts[shown_as or name] = iso(value) if word.endswith("@") else (value or None) if word.endswith("?") else value
    return facts


def job_summary(record: Record) -> dict[str, Any]:
    names = "id state task queue priority key? note? attempt created@ due@ started@ finished@ worker=owner? progress"
    return _document(record, names) | {"error": _short_error(record)}


def _short_error(record: Record) -> dict[str, Any] | None:
    return None if record.error is None else _document(record.error, "type message")


def job_details(record: Record, lines: list[str]) -> dict[str, Any]:
    args, kwargs = arguments_of(record)
    names = "failures crashes interruptions snoozes limited progress_text? progress_data form"
    facts: dict[str, Any] = job_summary(record) | _document(record, f"expires@ {_TIMES} {names}")
    facts |= {
        "after": list(record.after),
        "args": args,
        "kwargs": kwargs,
        "headers": dict(record.headers),
        "options": value_of(record.options) if record.options else {},
        "result": None if record.packed_result is None else value_of(record.packed_result),
        "attempts": attempt_documents(record.attempts),
        "swallowed": None if record.swallowed is None else msgspec.to_builtins(record.swallowed),
        "log": lines,
    }
    if hides(record.secrets, "return") and record.packed_result is not None:
        facts["result"] = HIDDEN
    if record.error is not None:
        facts["error"] = msgspec.to_builtins(record.error)
        if record.error.signal is not None:
            facts["error"]["signal_name"] = signal_name(record.error.signal)
    return facts


def attempt_documents(attempts: Sequence[AttemptRecord]) -> list[dict[str, Any]]:
    """Starts of a job for programs, with when each began to wait and how long it waited and ran, in seconds."""
    return [
        _document(one, "number outcome ready@ started@ ended@ worker error? signal exit_code")
        | {
            "waited": seconds_between(one.ready_us, one.started_us),
            "ran": seconds_between(one.started_us, one.ended_us),
            "signal_name": None if one.signal is None else signal_name(one.signal),
        }
        for one in attempts
    ]


def seconds_between(begin: int, end: int) -> float | None:
    """Seconds between two times of the store; None where one was not reached."""
    return round((end - begin) / 1e6, 6) if begin and end >= begin else None


def arguments_of(record: Record | WorkflowRecord) -> tuple[Any, dict[str, Any] | None]:
    """Positions and keywords without secret ones; or what cannot be read, as text, and None."""
    data = record.packed_args
    try:
        return shown(record.secrets, *codec.arguments(data))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return readable(data), None


def value_of(data: bytes) -> Any:
    try:
        return decode(data)
    except (msgspec.MsgspecError, ValueError):
        return readable(data)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def workflow_summary(record: WorkflowRecord) -> dict[str, Any]:
    names = "id definition state key? total done active created@ started@ finished@ lapses@ failed_node?"
    return _document(record, names) | {"progress": round(record.progress, 4), **record.counts}


def workflow_details(record: WorkflowRecord) -> dict[str, Any]:
    args, kwargs = arguments_of(record)
    return workflow_summary(record) | {
        "args": args,
        "kwargs": kwargs,
        "globals": value_of(record.fields["globals"]) if "globals" in record.fields else {},
        "ttl": None if record.ttl < 0 else record.ttl / 1e6,
    }


def node_document(node: NodeRecord) -> dict[str, Any]:
    job = node.job
    return _document(job, "id state task? queue? attempt started@ finished@ failures crashes") | {
        "name": node.facts.name,
        "role": node.role or None,
        "waits_for": node.pending if job.state == "blocked" else 0,
        "took": seconds_between(job.started_us, job.finished_us),
        "error": _short_error(job),
        "attempts": attempt_documents(job.attempts),
    }


def queue_document(queue: QueueFacts, now: int, workers: int) -> dict[str, Any]:
    """A queue, and how many live workers serve it; waits are in seconds."""
    return {
        "name": queue.name,
        "ready": queue.size,
        "paused": queue.paused,
        "paused_until": iso(queue.until),
        "paused_because": queue.note or None,
        "oldest_wait": queue.waited(now),
        "workers": workers,
    }


def worker_document(worker: WorkerFacts, now: int) -> dict[str, Any]:
    """A worker, without its runners; times left are in seconds."""
    said = worker.metadata
    since = said.get("since", "")
    names = "worker=owner runners=processes sizes busy draining quiet running"
    return _document(worker, names) | {
        "place": said.get("place"),
        "version": said.get("version"),
        "queues": [name for name in said.get("queues", "").split(",") if name],
        "lease_left": round((worker.lease - now) / 1e6, 3),
        "since": iso(int(since)) if since.isdecimal() else None,
    }


def runner_document(one: RunnerFacts, now: int) -> dict[str, Any]:
    return asdict(one) | {
        "since": iso(one.since) if one.since else None,
        "for": max(0, now - one.since) / 1e6 if one.since else None,
    }


def act_document(one: Act) -> dict[str, Any]:
    facts = asdict(one)
    return {"id": facts.pop("id"), "at": iso(facts.pop("at_us")), **facts}


def bulk_document(one: BulkOperation) -> dict[str, Any]:
    return {
        **_document(one, "id state ended@"),
        **_document(one.request, "verb who by began=bound@ total exact rate?"),
        **_document(one.progress, "looked_at=looked done refused"),
        "jobs": one.request.which.words,
    }


def event_document(one: EventRecord) -> dict[str, Any]:
    return {"id": one.id, "at": iso(one.at_us), "kind": one.kind, **one.facts}


def alarm_document(one: AlarmRecord) -> dict[str, Any]:
    state = _document(one.state, "rule=words raised@ figure=value")
    return {"alarm": one.name, **state, "looked_at": iso(one.looked_us)}


def limit_document(state: LimitState) -> dict[str, Any]:
    names = "name value by? queue? weight backlog? full paused running=held waiting free"
    return _document(state, names) | {
        "rate": None if state.rate is None else _document(state.rate, "n per burst shape timezone"),
        "concurrency": None if state.concurrency is None else state.concurrency.n,
        "paused_until": iso(state.until),
        "open": state.opens == 0,
        "opens": iso(state.opens or 0),
        "overrides": [_override(one) for one in state.overrides],
    }


def _override(one: Override) -> dict[str, Any]:
    fields = {name: text for name, text in one.fields.items() if text and name != "zone"}
    return {"part": one.part, "until": iso(one.until), "fields": fields}


def limit_numbers(rate: Rate | None, concurrency: Concurrency | None) -> str:
    """The numbers of a limit for people: ``500 per 60 s, 20 at once``."""
    found: list[str] = []
    if rate is not None:
        found.append(str(rate))
    if concurrency is not None:
        found.append(f"{concurrency.n:,} at once")
    return ", ".join(found) or "turns"
