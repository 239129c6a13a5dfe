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
from headrace.model.bulk_operation import BulkOperation
from headrace.model.codec import decode, readable
from headrace.model.hidden_values import hides, shown
from headrace.model.job_record import AttemptRecord, Record
from headrace.model.limit_rules import Concurrency, LimitState, Override, Rate
from headrace.model.notation import iso
from headrace.model.workflow import NodeRecord, WorkflowRecord
from headrace.protocol.overviews import QueueFacts, RunnerFacts, WorkerFacts
from headrace.settings import HIDDEN

# The same times as integers: microseconds of server time, 0 when not reached.
_TIMES = ("created_us", "due_us", "started_us", "finished_us", "expires_us")


def job_summary(record: Record) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "id": record.id,
        "state": record.state,
        "task": record.task,
        "queue": record.queue,
        "priority": record.priority,
        "key": record.key or None,
        "note": record.note or None,
        "attempt": record.attempt,
        "created": iso(record.created_us),
        "due": iso(record.due_us),
        "started": iso(record.started_us),
        "finished": iso(record.finished_us),
        "worker": record.owner or None,
        "progress": record.progress,
        "error": None,
    }
    if record.error is not None:
        facts["error"] = {"type": record.error.type, "message": record.error.message}
    return facts


def job_details(record: Record, lines: list[str]) -> dict[str, Any]:
    args, kwargs = arguments_of(record)
    facts: dict[str, Any] = job_summary(record) | {
        "expires": iso(record.expires_us),
        **{name: getattr(record, name) for name in _TIMES},
        "failures": record.failures,
        "crashes": record.crashes,
        "interruptions": record.interruptions,
        "snoozes": record.snoozes,
        "limited": record.limited,
        "progress_text": record.progress_text or None,
        "progress_data": record.progress_data,
        "after": list(record.after),
        "form": record.form,
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
        {
            "number": one.number,
            "outcome": one.outcome,
            "ready": iso(one.ready_us),
            "started": iso(one.started_us),
            "ended": iso(one.ended_us),
            "waited": seconds_between(one.ready_us, one.started_us),
            "ran": seconds_between(one.started_us, one.ended_us),
            "worker": one.worker,
            "error": one.error or None,
            "signal": one.signal,
            "signal_name": None if one.signal is None else signal_name(one.signal),
            "exit_code": one.exit_code,
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
    """``SIGSEGV`` of 11; a number without a name on this system as it is."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def workflow_summary(record: WorkflowRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "definition": record.definition,
        "state": record.state,
        "key": record.key or None,
        "total": record.total,
        "done": record.done,
        "progress": round(record.progress, 4),
        **record.counts,
        "active": record.active,
        "created": iso(record.created_us),
        "started": iso(record.started_us),
        "finished": iso(record.finished_us),
        "lapses": iso(record.lapses_us),
        "failed_node": record.failed_node or None,
    }


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
    return {
        "id": job.id,
        "name": node.facts.name,
        "state": job.state,
        "task": job.task or None,
        "queue": job.queue or None,
        "role": node.role or None,
        "attempt": job.attempt,
        "waits_for": node.pending if job.state == "blocked" else 0,
        "started": iso(job.started_us),
        "finished": iso(job.finished_us),
        "took": seconds_between(job.started_us, job.finished_us),
        "failures": job.failures,
        "crashes": job.crashes,
        "error": None if job.error is None else {"type": job.error.type, "message": job.error.message},
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
    since = worker.metadata.get("since", "")
    return {
        "worker": worker.owner,
        "place": worker.metadata.get("place"),
        "queues": [name for name in worker.metadata.get("queues", "").split(",") if name],
        "runners": worker.processes,
        "sizes": worker.sizes,
        "busy": worker.busy,
        "version": worker.metadata.get("version"),
        "draining": worker.draining,
        "quiet": worker.quiet,
        "running": worker.running,
        "lease_left": round((worker.lease - now) / 1e6, 3),
        "since": iso(int(since)) if since.isdecimal() else None,
    }


def runner_document(one: RunnerFacts, now: int) -> dict[str, Any]:
    """A runner of a worker, and for how many seconds it runs what it runs."""
    known = {name: getattr(one, name) for name in one.__struct_fields__}
    return known | {
        "since": iso(one.since) if one.since else None,
        "for": max(0, now - one.since) / 1e6 if one.since else None,
    }


def act_document(one: Act) -> dict[str, Any]:
    facts = asdict(one)
    return {"id": facts.pop("id"), "at": iso(facts.pop("at_us")), **facts}


def bulk_document(one: BulkOperation) -> dict[str, Any]:
    asked, progress = one.request, one.progress
    return {
        "id": one.id,
        "verb": asked.verb,
        "jobs": asked.which.words,
        "state": one.state,
        "who": asked.who,
        "by": asked.by,
        "began": iso(asked.bound_us),
        "ended": iso(one.ended_us),
        "total": asked.total,
        "exact": asked.exact,
        "rate": asked.rate or None,
        "looked_at": progress.looked,
        "done": progress.done,
        "refused": progress.refused,
    }


def event_document(one: EventRecord) -> dict[str, Any]:
    return {"id": one.id, "at": iso(one.at_us), "kind": one.kind, **one.facts}


def alarm_document(one: AlarmRecord) -> dict[str, Any]:
    return {
        "alarm": one.name,
        "rule": one.state.words,
        "raised": iso(one.state.raised_us),
        "figure": one.state.value,
        "looked_at": iso(one.looked_us),
    }


def limit_document(state: LimitState) -> dict[str, Any]:
    return {
        "name": state.name,
        "value": state.value,
        "by": state.by or None,
        "queue": state.queue or None,
        "rate": None if state.rate is None else _rate(state.rate),
        "concurrency": None if state.concurrency is None else state.concurrency.n,
        "weight": state.weight,
        "backlog": state.backlog or None,
        "full": state.full,
        "paused": state.paused,
        "paused_until": iso(state.until),
        "running": state.held,
        "waiting": state.waiting,
        "free": state.free,
        "open": state.opens == 0,
        "opens": iso(state.opens or 0),
        "overrides": [_override(one) for one in state.overrides],
    }


def _rate(rate: Rate) -> dict[str, Any]:
    return {"n": rate.n, "per": rate.per, "burst": rate.burst, "shape": rate.shape, "timezone": rate.timezone}


def _override(one: Override) -> dict[str, Any]:
    return {
        "part": one.part,
        "until": iso(one.until),
        "fields": {name: text for name, text in one.fields.items() if text and name != "zone"},
    }


def limit_numbers(rate: Rate | None, concurrency: Concurrency | None) -> str:
    """The numbers of a limit for people: ``500 per 60 s, 20 at once``."""
    found: list[str] = []
    if rate is not None:
        found.append(str(rate))
    if concurrency is not None:
        found.append(f"{concurrency.n:,} at once")
    return ", ".join(found) or "turns"
