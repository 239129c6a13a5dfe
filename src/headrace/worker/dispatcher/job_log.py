"""What a worker says of its jobs: of a start that ended one line of its log, in words; and counts for statistics.

Per task and per queue it counts how many came, started and ended how, and how long they waited and ran; of itself how
busy it was. A job costs four entries in lists; once a second they are added up, and the sums go into the buffer of
``app.stats``, which sends them on a connection of its own, beside the jobs' path. The log folds floods.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import sys
import time
from array import array
from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

from headrace.errors import OptionsError
from headrace.model.ended import EndKind
from headrace.model.job import Claim, JobError, parse_error
from headrace.model.notation import duration, size
from headrace.model.workflow import fields_of
from headrace.settings import Settings
from headrace.stats.resolutions import LONGEST, MARK, QUEUES, TASKS, bucket_of, queue_label
from headrace.worker.dispatcher.dispatcher_events import Log
from headrace.worker.standard_streams import log

EVERY = 1.0

_FLOAT = struct.Struct("=f")
_BITS = struct.Struct("=I")
# Which of a float's two halves is the high one.
_HIGH = 1 if sys.byteorder == "little" else 0

# Outcomes by the word that people know them by. What is released or taken back has not ended.
ENDS: dict[EndKind, str] = {
    "succeeded": "succeeded", "grown": "succeeded", "failed": "failed", "retry": "retried", "snoozed": "snoozed",
    "limited": "limited",
    "cancelled": "cancelled", "crashed": "crashed", "interrupted": "interrupted", "corrupt": "quarantined",
    "skipped": "skipped", "parked": "parked",
}  # fmt: skip


class StatsSink(Protocol):
    def absorb(self, label: str, counts: Mapping[str, int], at: float | None = None) -> None: ...


def coarse(values: array[float]) -> Counter[int]:
    """How many of some 32-bit floats have the same sign, exponent and seven bits of the fraction, counted in C."""
    halves = array("H", values.tobytes())
    return Counter(halves[_HIGH::2])


def middle(half: int) -> float:
    return float(_FLOAT.unpack(_BITS.pack(half << 16 | 0x8000))[0])


class _Sums:
    """Of one task and queue, an entry for each job: how it ended, microseconds, the second that it came in."""

    __slots__ = ("came", "ends", "runs", "waits")

    def __init__(self) -> None:
        self.ends: list[EndKind] = []
        self.runs = array("f")
        self.waits = array("f")
        self.came = array("q")

    def counts(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for kind, count in Counter(self.ends).items():
            found[ENDS[kind]] += count
            found["started"] += count if kind != "parked" else 0
        for field, times in (("run", self.runs), ("wait", self.waits)):
            for half, count in coarse(times).items():
                # A clock that was set back makes no time shorter than none.
                found[f"{field}{MARK}{bucket_of(max(0.0, middle(half)) / 1e6)}"] += count
        return found


class JobCounts:
    """Sums since the last second; ``next``: when they go on (monotonic seconds)."""

    def __init__(self, counts: StatsSink, workers: StatsSink, place: str) -> None:
        self.next = float("inf")
        self._counts = counts
        self._workers = workers
        self._place = place
        self._sums: dict[tuple[str, str], _Sums] = {}
        self._busy = 0
        self._memory = 0

    def ended(self, claim: Claim, kind: EndKind, now: float, cost: int = 0) -> None:
        """A start ended so. That of a job's first one counts it as enqueued, at the time when it lined up."""
        if kind not in ENDS:
            return
        # Each line is paid for by every job.
        try:
            sums = self._sums[claim.task, claim.queue]
        except KeyError:
            sums = self._sums[claim.task, claim.queue] = _Sums()
            self.next = min(self.next, now + EVERY)
        sums.ends.append(kind)
        if kind == "parked":
            # It did not start, and lines up anew.
            return
        if cost:
            sums.runs.append(cost)
            self._busy += cost
        ready = claim.ready
        # One that crashed, was interrupted or refused lined up where it stood before: since when it waits is not known.
        if ready > 0 and not (claim.crashes or claim.interruptions or claim.limited):
            sums.waits.append(claim.token - ready)
            if not (claim.failures or claim.snoozes):
                sums.came.append(ready // 1_000_000)

    def grew(self, memory: int) -> None:
        self._memory = max(self._memory, memory)

    def sampled(self, sizes: Mapping[str, int], at: float, is_first: bool) -> None:
        """Count ready jobs: ``ready`` divided by ``samples``, which the first shard counts, is the mean backlog."""
        if is_first:
            self._absorb(QUEUES, {"samples": 1}, at)
        for queue, ready in sizes.items():
            self._absorb(queue_label(queue), {"ready": ready}, at)

    def pass_on(self, now: float) -> None:
        """Hand the sums to the buffer; ``now``: seconds since 1970 by the server's clock, not this machine's."""
        self.next = float("inf")
        taken, self._sums = self._sums, {}
        for (task, queue), sums in taken.items():
            counts, came = sums.counts(), Counter(sums.came)
            for label in (f"{TASKS}/{task}", queue_label(queue)):
                self._absorb(label, counts, now)
                for second, count in came.items():
                    self._absorb(label, {"enqueued": count}, second)
        if taken:
            mine = {"busy": self._busy}
            if self._memory:
                mine[f"memory{MARK}{bucket_of(float(self._memory))}"] = 1
            self._workers.absorb(self._place, mine, now)
            self._busy = self._memory = 0

    def _absorb(self, label: str, counts: Mapping[str, int], at: float) -> None:
        try:
            self._counts.absorb(label, counts, at)
        except OptionsError:
            # Any program may have written a record. Names are shown escaped; a time of no year is not counted.
            with contextlib.suppress(OptionsError):
                self._counts.absorb(ascii(label)[1:-1][:LONGEST], counts, at)


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
