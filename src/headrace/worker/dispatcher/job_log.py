"""What the worker's log says of a start that ended: one line, in words. The dispatcher's log folds floods."""

from __future__ import annotations

import logging
import time
from typing import Any

from headrace.model.ended import EndKind
from headrace.model.job import Claim, JobError, parse_error
from headrace.model.notation import duration, size
from headrace.model.workflow import fields_of
from headrace.settings import Settings
from headrace.worker.dispatcher.dispatcher_events import Log
from headrace.worker.dispatcher.job_stats import ENDS
from headrace.worker.standard_streams import log

# How an outcome reads after "attempt 3".
_WORDS: dict[EndKind, str] = {
    "succeeded": "succeeded",
    "grown": "succeeded",
    "skipped": "was skipped",
    "failed": "failed",
    "retry": "failed",
    "crashed": "crashed",
    "corrupt": "is quarantined",
    "cancelled": "was cancelled",
    "interrupted": "was interrupted and goes back",
    "snoozed": "snoozed",
    "limited": "was told that it calls too often and goes back",
}
_FAILURES: frozenset[EndKind] = frozenset({"failed", "retry", "crashed", "corrupt"})
# The code of the line for an outcome.
CODES: dict[EndKind, str] = {kind: f"job.{ENDS[kind]}" for kind in _WORDS}
# Characters of an error that a line shows at most.
_LONGEST = 500
# The data of these outcomes is not an error.
_NO_ERROR: frozenset[EndKind] = frozenset({"succeeded", "grown", "skipped", "snoozed", "limited"})


def kinds(settings: Settings) -> frozenset[EndKind]:
    wishes: dict[str, frozenset[EndKind]] = {"none": frozenset(), "failures": _FAILURES, "all": frozenset(_WORDS)}
    return wishes[settings.log_jobs]


def level(kind: EndKind) -> int:
    return logging.ERROR if kind == "crashed" else logging.WARNING if kind in _FAILURES else logging.INFO


def line(claim: Claim, kind: EndKind, error: JobError | None, amount: int, cost: int, memory: int = 0) -> str:
    """``job ID (tasks.mean), attempt 1 failed: ZeroDivisionError: division by zero at tasks.py:8 in mean; ...``.

    ``amount``: microseconds until the next start. ``cost``: microseconds that the runner was busy; ``memory``: the most
    that its process had, bytes; 0: unknown.
    """
    word = "was interrupted" if kind == "interrupted" and claim.once else _WORDS[kind]
    parts = [f"job {claim.id} ({claim.task}), attempt {claim.attempt} {word}{_why(error)}"]
    if kind in ("retry", "snoozed"):
        parts.append(f"{'retry' if kind == 'retry' else 'again'} in {duration(amount)}")
    if claim.waited is not None:
        parts.append(f"waited {duration(claim.waited)}")
    if cost:
        parts.append(f"ran {duration(cost)}")
    if memory or (memory := _peak(error)):
        parts.append(f"peak {size(memory)}")
    return "; ".join((parts[0], ", ".join(parts[1:]))) if len(parts) > 1 else parts[0]


def facts(claim: Claim, kind: EndKind, error: JobError | None, cost: int, memory: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = {**fields_of(claim), "outcome": kind}
    if claim.waited is not None:
        found["waited"] = claim.waited / 1e6
    if cost:
        found["ran"] = cost / 1e6
    if error is not None:
        found["error"] = error.type
    if memory or (memory := _peak(error)):
        found["memory"] = memory
    return found


def _peak(error: JobError | None) -> int:
    return (error.peak_memory or 0) if error is not None else 0


def error_of(kind: EndKind, data: bytes) -> JobError | None:
    return None if kind in _NO_ERROR else parse_error(data)


def _why(error: JobError | None) -> str:
    if error is None:
        return ""
    # A crash is in the word already.
    told = [*([] if error.type == "Crashed" else [error.type]), *error.message.splitlines()[:1]]
    text = ": ".join(part for part in told if part)
    return f": {text[:_LONGEST]}" + (f" at {error.where}" if error.where else "")


# Lines of one code and task that a second has room for.
MOST = 10


class DispatcherLog:
    """Writes lines, unless many of one code and task come within a second; ``next``: when to call :meth:`pass_on`."""

    def __init__(self, *, fold: bool = True) -> None:
        """Make one; ``fold``: False where the user asked for a line of each start."""
        self.next = float("inf")
        self._fold = fold
        self._since = 0.0
        self._counts: dict[tuple[str, str], list[int]] = {}

    def write(self, action: Log) -> None:
        task = (action.extra or {}).get("facts", {}).get("task", "")
        if task and self._fold:
            now = time.monotonic()
            self.pass_on(now)
            if not self.admits(action.code, task, action.level, now):
                return
        log.log(action.level, action.text, *action.args, code=action.code, extra=action.extra)

    def pass_on(self, now: float) -> None:
        for level, code, task, count in self.rest(now):
            extra = {"facts": {"task": task, "more": count}}
            log.log(level, "and %d more of %s (%s)", count, task, code, code=code, extra=extra)

    def admits(self, code: str, task: str, level: int, now: float) -> bool:
        if now - self._since >= 1.0 and self.next > now:
            self._counts.clear()
            self._since = now
        row = self._counts.setdefault((code, task), [0, level])
        row[0] += 1
        if row[0] > MOST:
            self.next = self._since + 1.0
        return row[0] <= MOST

    def rest(self, now: float) -> list[tuple[int, str, str, int]]:
        if now < self.next:
            return []
        held = [(level, *key, count - MOST) for key, (count, level) in self._counts.items() if count > MOST]
        self._counts.clear()
        self._since, self.next = now, float("inf")
        return held
