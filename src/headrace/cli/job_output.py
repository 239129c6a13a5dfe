"""One job in full, for people and for programs. Prints what it is given; asks the store nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.admin.documents import arguments_of, seconds_between, signal_name
from headrace.cli.output import local, moment, percent, to_json
from headrace.model.codec import readable
from headrace.model.hidden_values import hides
from headrace.model.notation import duration, size, utc
from headrace.settings import HIDDEN

if TYPE_CHECKING:
    from headrace.cli.output import Output
    from headrace.model.job import JobError
    from headrace.model.job_record import AttemptRecord, Record
    from headrace.model.workflow import WorkflowRecord
    from headrace.tasks.reasons import Why

# Lines of the log that `show` ends with; `headrace jobs logs` has all.
TAIL = 20


def _journal(output: Output, attempts: Sequence[AttemptRecord]) -> None:
    left_out = attempts[-1].number - len(attempts)
    output.heading(f"attempts ({left_out:,} in between are not kept)" if left_out else "attempts")
    rows = [
        (
            one.number,
            "failed, retried" if one.outcome == "retry" else one.outcome,
            local(one.started_us),
            lasted(one.ready_us, one.started_us),
            lasted(one.started_us, one.ended_us),
            one.worker,
            _what_happened(one),
        )
        for one in attempts
    ]
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
        (record.failures, "failed"),
        (record.crashes, "crashed"),
        (record.interruptions, "interrupted"),
        (record.snoozes, "snoozed"),
        (record.limited, "limited"),
    )
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
    output.facts(_evidence(error))
    for part, text in (("traceback", error.traceback), ("last lines of stderr", error.stderr)):
        if text:
            output.heading(part)
            for line in text.rstrip().splitlines():
                output.line(f"  {line}")


def _evidence(error: JobError) -> list[tuple[str, object]]:
    return [
        ("type", error.type),
        ("message", error.message),
        ("at", error.where),
        ("attempt", error.attempt or None),
        ("worker", error.worker),
        ("signal", None if error.signal is None else f"{signal_name(error.signal)} ({error.signal})"),
        ("exit code", error.exit_code),
        ("peak memory", None if error.peak_memory is None else size(error.peak_memory)),
    ]


def explained(output: Output, found: Why) -> None:
    """Print why a job does not run: its state, then each reason with what was found and what helps."""
    output.line(f"{found.id} is {found.state}" if found.state else found.id)
    for reason in found.reasons:
        output.line(f"\n{reason.code}: {reason.text}")
        rows = [(f"  {name.removesuffix('_us')}", _found(name, value)) for name, value in reason.evidence.items()]
        output.facts([*rows, ("  next step", reason.next_step)])


def _found(name: str, value: object) -> str:
    if name.endswith("_us") and isinstance(value, int):
        return local(value) if value else ""
    return str(value)
