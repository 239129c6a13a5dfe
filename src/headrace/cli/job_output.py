"""Jobs, workflows and their nodes for people. Asks the store only for the nodes of a workflow, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.admin.documents import arguments_of, seconds_between, signal_name
from headrace.cli.output import distance, late_bar, local, moment, percent, span, to_json
from headrace.cli.queues import UNKNOWN
from headrace.model.codec import readable
from headrace.model.hidden_values import hides
from headrace.model.notation import duration, size, utc
from headrace.picture.view import urgency
from headrace.settings import HIDDEN

if TYPE_CHECKING:
    from headrace.cli.output import Output
    from headrace.model.job import JobError
    from headrace.model.job_record import AttemptRecord, Record
    from headrace.model.workflow import NodeRecord, WorkflowRecord
    from headrace.tasks.reasons import Why
    from headrace.workflows.run import WorkflowRun

TAIL = 20  # lines of the log that `show` ends with; `headrace jobs logs` has all


def _journal(output: Output, attempts: Sequence[AttemptRecord]) -> None:
    left_out = attempts[-1].number - len(attempts)
    output.heading(f"attempts ({left_out:,} in between are not kept)" if left_out else "attempts")
    rows = [
        (
            one.number, "failed, retried" if one.outcome == "retry" else one.outcome, local(one.started_us),
            lasted(one.ready_us, one.started_us), lasted(one.started_us, one.ended_us), one.worker, _what_happened(one),
        )
        for one in attempts
    ]  # fmt: skip
    columns = (">#", "outcome", "started", ">waited", ">ran", "worker", "error")
    output.table(columns, rows, keep=("#", "outcome", "started"), spare="error")


def lasted(begin: int, end: int) -> str:
    seconds = seconds_between(begin, end)
    return "-" if seconds is None else duration(seconds * 1e6)


def _what_happened(one: AttemptRecord) -> str:
    name = signal_name(one.signal) if one.signal is not None else ""
    return one.error if name in one.error else f"{one.error} ({name})"


def describe(output: Output, record: Record, lines: list[str], now: float) -> None:
    output.facts(_facts(record, now))
    if record.attempts:
        _journal(output, record.attempts)
    if record.error is not None:
        _error(output, record.error)
    if record.swallowed is not None:
        _error(output, record.swallowed, "swallowed by a middleware")
    if lines:
        kept = len(lines)
        output.heading(f"log, the last {TAIL} of {kept} lines" if kept > TAIL else "log")
        for line in lines[-TAIL:]:
            output.line(f"  {line}")


def _facts(record: Record, now: float) -> list[tuple[str, object]]:
    progress = "" if record.progress is None else f"{percent(record.progress)} {record.progress_text}".strip()
    return [
        ("job", record.id),
        ("state", record.state),
        ("task", record.task or "-"),
        ("queue", record.queue or "-"),
        ("priority", record.priority or None),
        ("key", record.key),
        ("note", record.note),
        ("follows", ", ".join(record.after[:5]) + (", ..." if len(record.after) > 5 else "")),
        ("enqueued", moment(record.created_us, now)),
        ("due", moment(record.due_us, now) if record.state == "scheduled" else None),
        ("started", moment(record.started_us, now) if record.started_us else None),
        ("ended", moment(record.finished_us, now) if record.finished_us else None),
        ("ran for", _took(record) if record.finished_us else None),
        ("expires", moment(record.expires_us, now) if record.expires_us and not record.state.final else None),
        ("worker", record.owner if record.state == "running" else None),
        ("attempts", _attempts(record)),
        ("progress", progress),
        ("arguments", call_of(record)),
        ("headers", ", ".join(f"{name}={to_json(text)}" for name, text in record.headers.items())),
        ("options", readable(record.options) if record.options else None),
        ("result", _result(record)),
    ]


def _result(record: Record) -> str | None:
    if record.packed_result is None:
        return None
    return HIDDEN if hides(record.secrets, "return") else readable(record.packed_result)


def _took(record: Record) -> str:
    seconds = (record.finished_us - record.started_us) / 1e6
    known = utc(record.started_us) and utc(record.finished_us) and seconds >= 0
    return f"{seconds:.3f} s" if known else "-"


def _attempts(record: Record) -> str:
    counts = (
        (record.failures, "failed"), (record.crashes, "crashed"), (record.interruptions, "interrupted"),
        (record.snoozes, "snoozed"), (record.limited, "limited"),
    )  # fmt: skip
    words = ", ".join(f"{count} {word}" for count, word in counts if count)
    return f"{record.attempt}" + (f" ({words})" if words else "")


def call_of(record: Record | WorkflowRecord) -> str:
    args, kwargs = arguments_of(record)
    if kwargs is None:
        return str(args)
    parts = [to_json(value) for value in args] + [f"{name}={to_json(value)}" for name, value in kwargs.items()]
    return ", ".join(parts) or "none"


def _error(output: Output, error: JobError, title: str = "error") -> None:
    output.heading(title)
    rows: list[tuple[str, object]] = [
        ("type", error.type),
        ("message", error.message),
        ("at", error.where),
        ("attempt", error.attempt or None),
        ("worker", error.worker),
        ("signal", None if error.signal is None else f"{signal_name(error.signal)} ({error.signal})"),
        ("exit code", error.exit_code),
        ("peak memory", None if error.peak_memory is None else size(error.peak_memory)),
    ]
    output.facts(rows)
    for part, text in (("traceback", error.traceback), ("last lines of stderr", error.stderr)):
        if text:
            output.heading(part)
            for line in text.rstrip().splitlines():
                output.line(f"  {line}")


def print_reasons(output: Output, found: Why) -> None:
    output.line(f"{found.id} is {found.state}" if found.state else found.id)
    for reason in found.reasons:
        output.line(f"\n{reason.code}: {reason.text}")
        rows = [(f"  {name.removesuffix('_us')}", _found(name, value)) for name, value in reason.evidence.items()]
        output.facts([*rows, ("  next step", reason.next_step)])


def _found(name: str, value: object) -> str:
    if name.endswith("_us") and isinstance(value, int):
        return local(value) if value else ""
    return str(value)


PAGE = 500


def read(output: Output, run: WorkflowRun, state: str | None) -> list[NodeRecord]:
    found: list[NodeRecord] = []
    page = run.nodes(state, limit=PAGE)
    with late_bar(output, page.count) as tell:
        while True:
            found += page
            tell(len(found))
            if page.next is None:
                return found
            page = run.nodes(state, limit=PAGE, after=page.next)


def most_urgent_first(nodes: Sequence[NodeRecord]) -> list[NodeRecord]:
    return sorted(nodes, key=lambda node: (urgency(node.job.state), node.job.state, node.number))


def row(record: WorkflowRecord, now: float) -> tuple[object, ...]:
    return (
        record.id, record.definition, record.state, f"{record.total:,}", percent(record.progress),
        distance(record.created_us, now), _remark(record, now),
    )  # fmt: skip


def _remark(record: WorkflowRecord, now: float) -> str:
    parts = [f"{record.failed_node} failed" if record.failed_node else "", f"key {record.key}" if record.key else ""]
    if record.lapses_us:
        parts.append(f"goes {distance(record.lapses_us, now)}")
    return ", ".join(part for part in parts if part)


def overview(record: WorkflowRecord, nodes: Sequence[NodeRecord], now: float) -> list[tuple[str, object]]:
    """Names and values. ``nodes``: all of them, or none where they were not read."""
    counts, seconds = record.counts, (record.finished_us - record.started_us) / 1e6
    beside = sum(node.role in ("undo", "callback") for node in nodes)
    running = sum(node.job.state == "running" for node in nodes)
    return [
        ("workflow", record.id),
        ("definition", record.definition or "-"),
        ("state", _state(record)),
        ("key", record.key),
        ("jobs", f"{record.total:,}" + (f", and {beside:,} to undo them or to call at the end" if beside else "")),
        ("failed", _failed(record)),
        ("succeeded", f"{counts['succeeded']:,}"),
        *((name, f"{counts[name]:,}") for name in ("cancelled", "skipped") if counts[name]),
        ("running", f"{running:,}") if nodes else ("active", f"{record.active:,}"),
        ("remaining", f"{record.total - record.done:,}"),
        ("arguments", call_of(record)),
        ("created", moment(record.created_us, now)),
        ("started", moment(record.started_us, now)),
        ("ended", moment(record.finished_us, now) if record.finished_us else None),
        ("ran for", span(seconds) if record.finished_us and record.started_us else None),
        ("kept", _kept(record, now)),
    ]


def _state(record: WorkflowRecord) -> str:
    if record.state == "failed" and record.failed_node:
        return f"failed at {record.failed_node}"
    if record.state not in ("running", "stopped"):
        return record.state
    more = ""
    if record.state == "running" and "undoing" in record.fields:
        more = ", undoing what it did"
    elif record.state == "running" and "cancel" in record.fields:
        more = ", being cancelled"
    return f"{record.state} {record.done:,}/{record.total:,} [{percent(record.progress)}]{more}"


def _failed(record: WorkflowRecord) -> str:
    failed, quarantined = record.counts["failed"], record.counts["quarantined"]
    more = f", {quarantined:,} of them quarantined" if quarantined else ""
    first = f", first {record.failed_node}" if record.failed_node else ""
    return f"{failed + quarantined:,}{more}{first}"


def _kept(record: WorkflowRecord, now: float) -> str:
    if record.state.final and record.lapses_us:
        return f"until {moment(record.lapses_us, now)}"
    kept = "for ever" if record.ttl < 0 else f"{span(record.ttl / 1e6)} after its end"
    return kept + (f"; if it is not started, until {moment(record.lapses_us, now)}" if record.lapses_us else "")


def tables(output: Output, nodes: Sequence[NodeRecord], now: float) -> None:
    if not nodes:
        return
    output.heading("jobs")
    rows = [
        (
            n.facts.name or n.number, n.job.state, n.job.task or n.role or "-", n.job.id,
            lasted(n.job.started_us, n.job.finished_us), _since(n, now), _node_remark(n),
        )
        for n in nodes
    ]  # fmt: skip
    columns = ("name", "state", "task", "id", ">took", ">since", "remark")
    output.table(columns, rows, keep=("state", "id", "took", "since"), spare="remark")


def _since(node: NodeRecord, now: float) -> str:
    job = node.job
    at = job.finished_us if job.state.final else job.started_us if job.state == "running" else 0
    return distance(at, now)


def _node_remark(node: NodeRecord) -> str:
    job = node.job
    if job.error is not None:
        count = job.attempts[-1].number if job.attempts else 0
        times = f"{count} attempts, " if count > 1 else ""
        return times + job.error.brief[:120]
    if job.state == "succeeded" and (job.crashes or job.failures):
        words = ((job.failures, "failed"), (job.crashes, "crashed"))
        return f"start {job.attempt}: " + ", ".join(f"{count} {word} before" for count, word in words if count)
    if job.state == "running" and job.progress is not None:
        return f"{percent(job.progress)} {job.progress_text}".strip()
    if job.state == "parked":
        return UNKNOWN
    if job.state == "blocked" and node.role in ("undo", "callback"):
        return "after a failure" if node.role == "undo" else "at the end"
    return f"waits for {node.pending} of {len(node.parents)}" if job.state == "blocked" and node.pending else ""
