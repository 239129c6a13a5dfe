"""What a worker counts of its jobs: per task and per queue how many came, started and ended how, and how long they
waited and ran; of itself how busy it was.

A job costs four entries in lists; once a second they are added up, and the sums go into the buffer of ``app.stats``,
which sends them on a connection of its own, beside the jobs' path.
"""

from __future__ import annotations

import contextlib
import struct
import sys
from array import array
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from headrace.errors import OptionsError
from headrace.model.ended import EndKind
from headrace.model.job import Claim
from headrace.stats.resolutions import LONGEST, MARK, QUEUES, TASKS, bucket_of, queue_label

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
        for queue, size in sizes.items():
            self._absorb(queue_label(queue), {"ready": size}, at)

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
