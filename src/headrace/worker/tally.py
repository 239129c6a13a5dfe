"""What a worker counts of its jobs: per task and per queue how many came, started and ended how, and how long they
waited and ran; of itself how busy it was.

Owns sums of one dispatcher. A job costs a few additions in dictionaries; once a second the sums go into the buffer of
``app.stats``, which sends them on a connection of its own, beside the jobs' path.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Protocol

from headrace.job import Claim
from headrace.stats.histogram import bucket_of
from headrace.stats.labels import MARK

EVERY = 1.0

# Outcomes by the word that people know them by. What is released or taken back has not ended.
_ENDS = {
    "succeeded": "succeeded", "grown": "succeeded", "failed": "failed", "retry": "retried", "snoozed": "snoozed",
    "cancelled": "cancelled", "crashed": "crashed", "interrupted": "interrupted", "corrupt": "quarantined",
    "skipped": "skipped", "parked": "parked",
}  # fmt: skip


class Counts(Protocol):
    """Where sums go; see :meth:`headrace.stats.Stats.absorb`."""

    def absorb(self, label: str, counts: Mapping[str, int], at: float | None = None) -> None: ...


def rough(microseconds: int) -> int:
    """The six highest bits and how many follow, in one number: of these there are few, and a histogram is coarser."""
    more = microseconds.bit_length() - 6
    return microseconds if more <= 0 else more << 6 | microseconds >> more


def meant(number: int) -> int:
    """The microseconds that :func:`rough` made a number of, in the middle of those that have it."""
    more = number >> 6
    # The highest of the six bits is always 1, so that what follows it and the count of bits part where it stands.
    return number if number < 64 else ((number & 63) << (more)) + (1 << more >> 1)


class _Sums:
    """Of one task and queue: ends by kind, times by :func:`rough`, and when jobs lined up, by second."""

    __slots__ = ("came", "ends", "runs", "waits")

    def __init__(self) -> None:
        self.ends: defaultdict[str, int] = defaultdict(int)
        self.runs: defaultdict[int, int] = defaultdict(int)
        self.waits: defaultdict[int, int] = defaultdict(int)
        self.came: defaultdict[int, int] = defaultdict(int)

    def counts(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for kind, count in self.ends.items():
            found["started"] += count
            found[_ENDS[kind]] += count
        for field, times in (("run", self.runs), ("wait", self.waits)):
            for number, count in times.items():
                found[f"{field}{MARK}{bucket_of(meant(number) / 1e6)}"] += count
        return found


class Tally:
    """Sums since the last second.

    Attributes:
        next: when they go on (monotonic seconds).
    """

    def __init__(self, counts: Counts, place: str) -> None:
        self.next = float("inf")
        self._counts = counts
        self._place = place
        self._sums: dict[tuple[str, str], _Sums] = {}
        self._busy = 0
        self._memory = 0

    def ended(self, claim: Claim, kind: str, now: float, cost: int = 0) -> None:
        """A start ended so. That of a job's first one counts it as enqueued, at the time when it lined up.

        Args:
            cost: microseconds that its code ran; 0: it is not known, or did not.
        """
        if kind not in _ENDS:
            return
        # Each line is paid for by every job, which is why rough() is written out.
        try:
            sums = self._sums[claim.task, claim.queue]
        except KeyError:
            sums = self._sums[claim.task, claim.queue] = _Sums()
            self.next = min(self.next, now + EVERY)
        sums.ends[kind] += 1
        if cost:
            more = cost.bit_length() - 6
            sums.runs[cost if more <= 0 else more << 6 | cost >> more] += 1
            self._busy += cost
        ready = claim.ready
        if ready > 0:
            wait = max(0, claim.token - ready)
            more = wait.bit_length() - 6
            sums.waits[wait if more <= 0 else more << 6 | wait >> more] += 1
            if not (claim.failures or claim.crashes or claim.interruptions or claim.snoozes):
                sums.came[ready // 1_000_000] += 1

    def grew(self, memory: int) -> None:
        """A runner had so much memory at most, bytes."""
        self._memory = max(self._memory, memory)

    def pass_on(self) -> None:
        """Hand the sums to the buffer."""
        self.next = float("inf")
        taken, self._sums = self._sums, {}
        for (task, queue), sums in taken.items():
            counts = sums.counts()
            for label in (f"task/{task}", f"queue/{queue}"):
                self._counts.absorb(label, counts)
                for second, count in sums.came.items():
                    self._counts.absorb(label, {"enqueued": count}, second)
        if taken:
            mine = {"busy": self._busy}
            if self._memory:
                mine[f"memory{MARK}{bucket_of(float(self._memory))}"] = 1
            self._counts.absorb(f"worker/{self._place}", mine)
            self._busy = self._memory = 0
