"""Which buckets to read for a range: the fewest that cover it exactly, of those that are still there.

Pure. A total may take a coarse bucket and subtract the fine ones outside of the range; it never uses a bucket that has
expired, or that may expire while it is read. Where the fine ones at an edge are gone, the range grows to the next
coarser edge, and the plan says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import msgspec

from headrace.stats.resolutions import Level, Resolutions

# Seconds before its end from which a bucket is not relied on: clocks differ, and reading takes time.
MARGIN = 60
# Buckets that one script reads. A plan with subtractions must be read by one, or a writer could come between.
MOST = 1000


class BucketRange(msgspec.Struct, frozen=True):
    """Neighbouring buckets of one level, all added or all subtracted.

    Attributes:
        level: of the buckets.
        start, end: of the first and of the last.
        sign: 1 or -1.
    """

    level: Level
    start: int
    end: int
    sign: int

    @property
    def size(self) -> int:
        return self.level.cut.number(self.end) - self.level.cut.number(self.start)


class Plan(msgspec.Struct, frozen=True):
    """What to read.

    Attributes:
        start, end: the range that is covered, seconds since 1970, without its end.
        exact: whether that is the range that was asked for.
        pieces: the buckets.
    """

    start: int
    end: int
    exact: bool
    pieces: tuple[BucketRange, ...]

    @property
    def reads(self) -> int:
        return sum(piece.size for piece in self.pieces)

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Date and sign of each bucket."""
        for piece in self.pieces:
            cut = piece.level.cut
            for at in cut.walk(piece.start, piece.end):
                yield cut.date(at), piece.sign


Path = tuple[int, tuple[BucketRange, ...]]


def _alive(level: Level, at: int, now: int) -> bool:
    return level.ends(at) > now + MARGIN


def _step(level: Level, start: int, end: int, now: int, add_only: bool) -> Path | None:
    """From one time to another in buckets of one level; backwards means subtracting. None where one has expired."""
    if start == end:
        return 0, ()
    piece = BucketRange(level, min(start, end), max(start, end), 1 if start < end else -1)
    # Buckets of one level expire in their order, so that the first speaks for all.
    if not _alive(level, piece.start, now) or (add_only and piece.sign < 0):
        return None
    return piece.size, (piece,)


def _spread(
    level: Level, parent: Level, ends: dict[int, Path], now: int, add_only: bool, forward: bool
) -> dict[int, Path]:
    """From each time to the edges of the coarser bucket that holds it, at the least cost."""
    found: dict[int, Path] = {}
    for at, (cost, pieces) in ends.items():
        for edge in {parent.cut.floor(at), parent.cut.ceil(at)}:
            step = _step(level, at, edge, now, add_only) if forward else _step(level, edge, at, now, add_only)
            if step is not None and (edge not in found or cost + step[0] < found[edge][0]):
                found[edge] = cost + step[0], pieces + step[1]
    return found


def _shortest(levels: tuple[Level, ...], start: int, end: int, now: int, add_only: bool) -> Path | None:
    """The least buckets from start to end.

    A time is left towards an edge of the next coarser bucket or in steps of its own level, never past such an edge:
    from there the coarser bucket is one step. So two times a level and side are all that need a look.
    """
    best: Path | None = None
    left: dict[int, Path] = {start: (0, ())}
    right: dict[int, Path] = {end: (0, ())}
    for n, level in enumerate(levels):
        for one, (before, head) in left.items():
            for other, (behind, tail) in right.items():
                step = _step(level, one, other, now, add_only)
                if step is not None and (best is None or before + step[0] + behind < best[0]):
                    best = before + step[0] + behind, head + step[1] + tail
        if n + 1 < len(levels):
            left = _spread(level, levels[n + 1], left, now, add_only, forward=True)
            right = _spread(level, levels[n + 1], right, now, add_only, forward=False)
    return best


# A scrape and a table ask for the same range of many labels.
@lru_cache(64)
def cover(layout: Resolutions, every: Level, start: int, end: int, now: int) -> Plan:
    """The plan for a total.

    Args:
        every: whose buckets ``start`` and ``end`` are edges of.
        now: seconds since 1970.

    Returns:
        a plan that covers the range, or more of it where edges have expired, or less where even the coarsest have.
    """
    levels = tuple(level for level in layout.levels if level.cut.digits <= every.cut.digits)
    if start >= end:
        return Plan(start, start, exact=True, pieces=())
    for level in levels:
        first = level.cut.floor(start)
        for last in dict.fromkeys((end, level.cut.ceil(end))):
            path = _shortest(levels, first, last, now, add_only=False)
            if path is not None and path[0] > MOST:
                path = _shortest(levels, first, last, now, add_only=True)
            if path is not None:
                return Plan(first, last, exact=(first, last) == (start, end), pieces=path[1])
    return _what_is_left(levels[-1], start, end, now)


def _what_is_left(level: Level, start: int, end: int, now: int) -> Plan:
    cut = level.cut
    last = cut.ceil(end)
    # Alive is what ends after now, less its retention: the bucket at that time and all later ones.
    first = max(cut.floor(start), cut.floor(now + MARGIN - level.keep))
    if first >= last:
        return Plan(last, last, exact=False, pieces=())
    return Plan(first, last, exact=False, pieces=(BucketRange(level, first, last, 1),))


@lru_cache(64)
def row(layout: Resolutions, every: Level, start: int, end: int, now: int) -> Plan:
    """The plan for a series: every bucket of the range, of the finest resolution that is still whole in it."""
    levels = [level for level in layout.levels if level.cut.digits <= every.cut.digits]
    if start >= end:
        return Plan(start, start, exact=True, pieces=())
    for level in levels:
        first, last = level.cut.floor(start), level.cut.ceil(end)
        if _alive(level, first, now):
            return Plan(first, last, exact=level is every, pieces=(BucketRange(level, first, last, 1),))
    return _what_is_left(levels[-1], start, end, now)
