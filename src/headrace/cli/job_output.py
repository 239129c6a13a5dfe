"""One job in full, for people and for programs. Prints what it is given; asks the store nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.cli.output import to_json
from headrace.cli.units import moment, size, stamp
from headrace.model import codec
from headrace.model.codec import decode, readable

if TYPE_CHECKING:
    from headrace.cli.output import Output
    from headrace.model.job import JobError
    from headrace.model.job_record import AttemptRecord, Record

# The same times as integers: microseconds of server time, 0 when not reached.
_TIMES = ("created_us", "due_us", "started_us", "finished_us", "expires_us")
# Lines of the log that `show` ends with; `headrace jobs logs` has all.
TAIL = 20


def summary(record: Record) -> dict[str, Any]:
    """A job for a list: what fits in a line."""
    facts: dict[str, Any] = {
        "id": record.id,
        "state": record.state,
        "task": record.task,
        "queue": record.queue,
        "priority": record.priority,
        "key": record.key or None,
        "note": record.note or None,
        "attempt": record.attempt,
        "created": stamp(record.created_us),
        "due": stamp(record.due_us),
        "started": stamp(record.started_us),
        "finished": stamp(record.finished_us),
        "worker": record.owner or None,
        "progress": record.progress,
        "error": None,
    }
    if record.error is not None:
        facts["error"] = {"type": record.error.type, "message": record.error.message}
    return facts


def details(record: Record, lines: list[str]) -> dict[str, Any]:
    """A job with everything that is stored of it."""
    args, kwargs = arguments_of(record.packed_args)
    facts: dict[str, Any] = summary(record) | {
        "expires": stamp(record.expires_us),
        **{name: getattr(record, name) for name in _TIMES},
        "failures": record.failures,
        "crashes": record.crashes,
        "interruptions": record.interruptions,
        "snoozes": record.snoozes,
        "progress_text": record.progress_text or None,
        "form": record.form,
        "args": args,
        "kwargs": kwargs,
        "headers": dict(record.headers),
        "options": value_of(record.options) if record.options else {},
        "result": None if record.packed_result is None else value_of(record.packed_result),
        "attempts": attempt_facts(record.attempts),
        "swallowed": None if record.swallowed is None else msgspec.to_builtins(record.swallowed),
        "log": lines,
    }
    if record.error is not None:
        facts["error"] = msgspec.to_builtins(record.error)
        if record.error.signal is not None:
            facts["error"]["signal_name"] = signal_name(record.error.signal)
    return facts


def attempt_facts(attempts: Sequence[AttemptRecord]) -> list[dict[str, Any]]:
    """Starts of a job for programs, with when each began to wait and how long it waited and ran, in seconds."""
    return [
        {
            "number": one.number,
            "outcome": one.outcome,
            "ready": stamp(one.ready_us),
            "started": stamp(one.started_us),
            "ended": stamp(one.ended_us),
            "waited": _seconds(one.ready_us, one.started_us),
            "ran": _seconds(one.started_us, one.ended_us),
            "worker": one.worker,
            "error": one.error or None,
            "signal": one.signal,
            "signal_name": None if one.signal is None else signal_name(one.signal),
            "exit_code": one.exit_code,
        }
        for one in attempts
    ]


def _seconds(begin: int, end: int) -> float | None:
    return round((end - begin) / 1e6, 6) if begin and end >= begin else None


def _journal(output: Output, attempts: Sequence[AttemptRecord]) -> None:
    """Starts of a job for people; those that were left out show as a gap in the numbers."""
    left_out = attempts[-1].number - len(attempts)
    output.heading(f"attempts ({left_out:,} in between are not kept)" if left_out else "attempts")
    rows = [
        (
            one.number,
            "failed, retried" if one.outcome == "retry" else one.outcome,
            _clock(one.started_us),
            _span(one.ready_us, one.started_us),
            _span(one.started_us, one.ended_us),
            one.worker,
            _what_happened(one),
        )
        for one in attempts
    ]
    columns = (">#", "outcome", "started", ">waited", ">ran", "worker", "error")
    output.table(columns, rows, keep=("#", "outcome", "started"), spare="error")


def _clock(microseconds: int) -> str:
    return moment(microseconds, 0).partition(" (")[0]


def _span(begin: int, end: int) -> str:
    from headrace.picture.view import spell

    seconds = _seconds(begin, end)
    return "-" if seconds is None else spell(round(seconds * 1e6))


def _what_happened(one: AttemptRecord) -> str:
    name = signal_name(one.signal) if one.signal is not None else ""
    return one.error if name in one.error else f"{one.error} ({name})"


def describe(output: Output, record: Record, lines: list[str], now: float) -> None:
    """Print a job for people."""
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


def _facts(record: Record, now: float) -> Iterator[tuple[str, object]]:
    """Names and values; what a job does not have is left out."""
    progress = "" if record.progress is None else f"{record.progress:.0%} {record.progress_text}".strip()
    yield from (("job", record.id), ("state", record.state))
    yield from (("task", record.task or "-"), ("queue", record.queue or "-"))
    yield from _given(("priority", record.priority), ("key", record.key), ("note", record.note))
    yield from _times(record, now)
    yield from _given(("worker", record.owner if record.state == "running" else ""))
    yield "attempts", _attempts(record)
    yield from _given(("progress", progress))
    yield "arguments", call_of(record.packed_args)
    yield from _given(("headers", ", ".join(f"{name}={to_json(text)}" for name, text in record.headers.items())))
    yield from _given(("options", readable(record.options) if record.options else ""))
    if record.packed_result is not None:
        yield "result", readable(record.packed_result)


def _given(*rows: tuple[str, object]) -> Iterator[tuple[str, object]]:
    yield from (row for row in rows if row[1])


def _times(record: Record, now: float) -> Iterator[tuple[str, object]]:
    yield "enqueued", moment(record.created_us, now)
    if record.state == "scheduled":
        yield "due", moment(record.due_us, now)
    if record.started_us:
        yield "started", moment(record.started_us, now)
    if record.finished_us:
        yield "ended", moment(record.finished_us, now)
        yield "ran for", _took(record)
    if record.expires_us and not record.state.final:
        yield "expires", moment(record.expires_us, now)


def _took(record: Record) -> str:
    seconds = (record.finished_us - record.started_us) / 1e6
    known = stamp(record.started_us) and stamp(record.finished_us) and seconds >= 0
    return f"{seconds:.3f} s" if known else "-"


def _attempts(record: Record) -> str:
    counts = (
        (record.failures, "failed"),
        (record.crashes, "crashed"),
        (record.interruptions, "interrupted"),
        (record.snoozes, "snoozed"),
    )
    words = ", ".join(f"{count} {word}" for count, word in counts if count)
    return f"{record.attempt}" + (f" ({words})" if words else "")


def call_of(data: bytes) -> str:
    """Arguments as they stand in a call, each as JSON."""
    args, kwargs = arguments_of(data)
    if kwargs is None:
        return str(args)
    parts = [to_json(value) for value in args] + [f"{name}={to_json(value)}" for name, value in kwargs.items()]
    return ", ".join(parts) or "none"


def arguments_of(data: bytes) -> tuple[Any, dict[str, Any] | None]:
    """Positions and keywords; or what cannot be read, as text, and None."""
    try:
        return codec.arguments(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return readable(data), None


def value_of(data: bytes) -> Any:
    """A stored value; what cannot be read, as text."""
    try:
        return decode(data)
    except (msgspec.MsgspecError, ValueError):
        return readable(data)


def _error(output: Output, error: JobError, title: str = "error") -> None:
    """What is known of the last failure, the evidence of a crash included."""
    output.heading(title)
    output.facts(_evidence(error))
    for part, text in (("traceback", error.traceback), ("last lines of stderr", error.stderr)):
        if text:
            output.heading(part)
            for line in text.rstrip().splitlines():
                output.line(f"  {line}")


def _evidence(error: JobError) -> Iterator[tuple[str, object]]:
    yield "type", error.type
    if error.message:
        yield "message", error.message
    if error.where:
        yield "at", error.where
    if error.attempt:
        yield "attempt", error.attempt
    if error.worker:
        yield "worker", error.worker
    if error.signal is not None:
        yield "signal", f"{signal_name(error.signal)} ({error.signal})"
    if error.exit_code is not None:
        yield "exit code", error.exit_code
    if error.peak_memory is not None:
        yield "peak memory", size(error.peak_memory)


def signal_name(number: int) -> str:
    """``SIGSEGV`` of 11; a number without a name on this system as it is."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
