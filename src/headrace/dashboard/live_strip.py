"""Rates of the last ten minutes, two seconds each: differences of successive reads of the current minute's bucket.

Kept in the dashboard, while a page is open. Reads nothing, draws nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import datetime

import msgspec

# Seconds of one slot, and how many there are.
SLOT, SLOTS = 2.0, 300
# Seconds between two reads beyond which nothing is known of what was in between.
GAP = 3 * SLOT


class StripPoint(msgspec.Struct, frozen=True):
    """What ended in one slot: jobs a second, and how many of them failed; ``at`` in seconds."""

    at: float
    ended: float
    failed: float


class LiveStrip:
    """The points of the last ten minutes.

    Attributes:
        points: the oldest first; none for slots in which no page was open.
    """

    def __init__(self) -> None:
        self.points: deque[StripPoint] = deque(maxlen=SLOTS)
        self._at = 0.0
        self._seen: Mapping[datetime, tuple[int, int]] = {}

    def add(self, at: float, counts: Mapping[datetime, tuple[int, int]]) -> None:
        """Take a read.

        Args:
            at: seconds, of a clock that never goes back.
            counts: by the start of each of the last two minutes, jobs that ended in it, and those of them that failed.
        """
        passed, seen = at - self._at, self._seen
        self._at, self._seen = at, counts
        if not seen or not 0 < passed <= GAP:
            return
        known = {start: seen.get(start, (0, 0)) for start in counts}
        ended, failed = (sum(max(0, counts[one][n] - known[one][n]) for one in counts) / passed for n in (0, 1))
        self.points.append(StripPoint(at, ended, failed))

    def slots(self) -> list[StripPoint | None]:
        """One for each two seconds of the last ten minutes, the newest last; None where nothing is known."""
        found: list[StripPoint | None] = [None] * SLOTS
        for point in self.points:
            place = SLOTS - 1 - round((self._at - point.at) / SLOT)
            if place >= 0:
                found[place] = point
        return found
