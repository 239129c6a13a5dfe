"""Reading statistics: a label and a range, asked of the server when its first figure is wanted, and not again.

One rule for every range: from the bucket that holds ``start`` up to the one that holds ``end``, which belongs to it
only with ``inclusive=True``. A total may take a coarse bucket and subtract the fine ones outside of the range; it never
uses a bucket that has expired, or that may expire while it is read. Where the fine ones at an edge are gone, the range
grows to the next coarser edge, and the plan says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from headrace.errors import OptionsError
from headrace.model.notation import EPOCH
from headrace.protocol import stats_calls as protocol
from headrace.stats.resolutions import MARK, Histogram, Level, Resolutions, field_of, histogram_of, middle_of, unit_of
from headrace.store.client import Client, Steps, together

# Seconds before its end from which a bucket is not relied on: clocks differ, and reading takes time.
MARGIN = 60
# Buckets that one script reads. A plan with subtractions must be read by one, or a writer could come between.
MAX_PLAN_READS = 1000


class BucketRange(msgspec.Struct, frozen=True):
    """Neighbouring buckets of one level, all added (``sign`` 1) or all subtracted (-1)."""

    level: Level
    start: int
    end: int
    sign: int

    @property
    def size(self) -> int:
        return self.level.cut.number(self.end) - self.level.cut.number(self.start)


class Plan(msgspec.Struct, frozen=True):
    """What to read, as pieces; ``exact``: whether the range that is covered is the one that was asked for."""

    start: int
    end: int
    exact: bool
    pieces: tuple[BucketRange, ...]

    @property
    def reads(self) -> int:
        return sum(piece.size for piece in self.pieces)

    def buckets(self) -> Iterator[tuple[str, int]]:
        for piece in self.pieces:
            cut = piece.level.cut
            for at in cut.walk(piece.start, piece.end):
                yield cut.date(at), piece.sign


Path = tuple[int, tuple[BucketRange, ...]]


def _alive(level: Level, at: int, now: int) -> bool:
    return level.ends(at) > now + MARGIN


def _step(level: Level, start: int, end: int, now: int, add_only: bool) -> Path | None:
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
    found: dict[int, Path] = {}
    for at, (cost, pieces) in ends.items():
        for edge in {parent.cut.floor(at), parent.cut.ceil(at)}:
            step = _step(level, at, edge, now, add_only) if forward else _step(level, edge, at, now, add_only)
            if step is not None and (edge not in found or cost + step[0] < found[edge][0]):
                found[edge] = cost + step[0], pieces + step[1]
    return found


def _shortest(levels: tuple[Level, ...], start: int, end: int, now: int, add_only: bool) -> Path | None:
    """The least buckets from start to end. A time is left towards an edge of the next coarser bucket or in steps of its
    own level, never past such an edge: from there the coarser bucket is one step. So two times a level and side are all
    that need a look.
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
    """The plan for a total. It covers more of the range where edges have expired, less where the coarsest have."""
    levels = tuple(level for level in layout.levels if level.cut.digits <= every.cut.digits)
    if start >= end:
        return Plan(start, start, exact=True, pieces=())
    for level in levels:
        first = level.cut.floor(start)
        for last in dict.fromkeys((end, level.cut.ceil(end))):
            path = _shortest(levels, first, last, now, add_only=False)
            if path is not None and path[0] > MAX_PLAN_READS:
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


# Buckets that one reading may want.
MOST = 100_000
# Children that one round trip brings; buckets that one script reads of several children.
PAGE = 1000
READ = 200


class Bucket(msgspec.Struct, frozen=True):
    """What was counted in a piece of time, from ``start`` to before ``end``, UTC.

    Attributes:
        counts: by field; those whose sum is 0 are left out.
        histograms: by field.
        exact: False when finer buckets had expired: then pieces are coarser than was asked for, or begin later.
    """

    start: datetime
    end: datetime
    counts: Mapping[str, int]
    histograms: Mapping[str, Histogram]
    exact: bool = True

    def __getitem__(self, field: str) -> int:
        """The count of a field, 0 when nothing was counted."""
        return self.counts.get(field_of(field), 0)

    def histogram(self, field: str) -> Histogram:
        """The values that were observed in a field, empty when there were none."""
        return self.histograms.get(field_of(field), Histogram({}))

    def percentile(self, field: str, percent: float) -> float:
        return self.histogram(field).percentile(percent)


class SeriesQuery(msgspec.Struct, frozen=True):
    """What is asked for.

    Attributes:
        label: normalised, prefix included.
        layout: the resolutions that are kept of labels in general.
        every: name of the resolution whose buckets are the range's edges.
        engine: the resolutions of the labels that have their own; empty where these are not in reach.
        inclusive: whether the bucket that holds ``end`` belongs to the range.
        fields: those that are wanted; all when empty.
    """

    label: str
    layout: Resolutions
    start: int
    end: int
    every: str
    inclusive: bool
    fields: tuple[str, ...]
    engine: Mapping[str, Resolutions]

    @property
    def kept(self) -> Resolutions:
        return self.engine.get(self.label.partition("/")[0], self.layout)

    def plan(self, make: Callable[..., Plan], now: int) -> Plan:
        """Which buckets to read. Raises OptionsError: the resolution is not kept, or there are too many buckets."""
        level = self.kept.level(self.every)
        first = level.cut.floor(self.start)
        last = level.cut.after(self.end) if self.inclusive else level.cut.floor(self.end)
        plan = make(self.kept, level, first, last, now)
        if plan.reads > MOST:
            raise OptionsError(
                f"this range holds {plan.reads:,} buckets to read, more than {MOST:,}: take a coarser resolution than "
                f"every={self.every!r}, or a shorter range"
            )
        return plan


def _sum(held: Iterator[tuple[int, protocol.Held]]) -> protocol.Held:
    found: protocol.Held = {}
    for sign, counts in held:
        for field, n in counts.items():
            found[field] = found.get(field, 0) + sign * n
    return found


def _total(plan: Plan, held: Sequence[protocol.Held]) -> Bucket:
    signs = (sign for _, sign in plan.buckets())
    return _bucket(plan.start, plan.end, _sum(zip(signs, held, strict=True)), plan.exact)


def _bucket(start: int, end: int, held: protocol.Held, exact: bool) -> Bucket:
    counts: dict[str, int] = {}
    values: dict[str, dict[float, int]] = {}
    for field, n in held.items():
        name, mark, number = field.partition(MARK)
        if not n:
            continue
        if mark:
            values.setdefault(name, {})[middle_of(number)] = n
        else:
            counts[name] = n
    histograms = {name: histogram_of(found) for name, found in values.items()}
    # Not fromtimestamp: systems differ in the years that they accept.
    first, last = (EPOCH + timedelta(seconds=at) for at in (start, end))
    return Bucket(first, last, counts, histograms, exact)


class Reading:
    """What ``find`` gives: nothing is asked before a figure is wanted, and what was answered is kept."""

    def __init__(self, client: Client, query: SeriesQuery, clock: Callable[[], float]) -> None:
        self.query = query
        self._client = client
        self._clock = clock
        self._total: Bucket | None = None
        self._series: list[Bucket] | None = None
        self._children: tuple[int | None, list[Reading]] | None = None

    @property
    def label(self) -> str:
        """The label, normalised."""
        return self.query.label

    def total(self, *, reload: bool = False) -> Bucket:
        """All of the range as one sum, from the fewest buckets that make it; ``reload``: ask again, although it was
        answered. Raises OptionsError: the resolution is not kept, or the range needs too many buckets. Cost: one round
        trip at first, then none.
        """
        if self._total is None or reload:
            self._total = self._client.drive(self._ask_total())
        return self._total

    async def atotal(self, *, reload: bool = False) -> Bucket:
        """See :meth:`total`."""
        if self._total is None or reload:
            self._total = await self._client.adrive(self._ask_total())
        return self._total

    def series(self, *, reload: bool = False) -> list[Bucket]:
        """Every bucket of the range, the empty ones too, in the order of time. Raises as :meth:`total`. Cost: one round
        trip per 1,000 buckets at first, then none.
        """
        if self._series is None or reload:
            self._series = self._client.drive(self._ask_series())
        return self._series

    async def aseries(self, *, reload: bool = False) -> list[Bucket]:
        """See :meth:`series`."""
        if self._series is None or reload:
            self._series = await self._client.adrive(self._ask_series())
        return self._series

    def children(self, *, limit: int | None = None, reload: bool = False) -> list[Reading]:
        """A reading of the same range for each label right below this one, by name; ``limit``: this many at most, those
        that were counted last. Cost: one round trip per 1,000 children at first, then none.
        """
        if self._children is None or self._children[0] != limit or reload:
            self._children = limit, self._client.drive(self._ask_children(limit))
        return self._children[1]

    async def achildren(self, *, limit: int | None = None, reload: bool = False) -> list[Reading]:
        """See :meth:`children`."""
        if self._children is None or self._children[0] != limit or reload:
            self._children = limit, await self._client.adrive(self._ask_children(limit))
        return self._children[1]

    def parent(self) -> Reading:
        """A reading of the same range for the label above; the root's is itself. Cost: none."""
        return self._other(replace(self.query, label=self.query.label.rpartition("/")[0]))

    def percentile(self, field: str, percent: float) -> float:
        """The value of a field that ``percent`` of all in the range do not exceed. Cost: as :meth:`total`."""
        return self.total().percentile(field, percent)

    async def apercentile(self, field: str, percent: float) -> float:
        """See :meth:`percentile`."""
        return (await self.atotal()).percentile(field, percent)

    def __getitem__(self, field: str) -> int:
        """The total of a field. Cost: as :meth:`total`."""
        return self.total()[field]

    def __iter__(self) -> Iterator[Bucket]:
        """The buckets of the series. Cost: as :meth:`series`."""
        return iter(self.series())

    def learn_total(self) -> Steps[None]:
        self._total = yield from self._ask_total()

    def learn_series(self) -> Steps[None]:
        self._series = yield from self._ask_series()

    def totals_below(self, limit: int) -> Steps[dict[str, Bucket]]:
        """Totals of this range by the labels right below, those that were counted last. Cost: one round trip."""
        plan = self.query.plan(cover, int(self._clock()))
        dates = [date for date, _ in plan.buckets()]
        size = max(1, READ // max(1, len(dates)))
        places = [(first, min(size, limit - first)) for first in range(0, limit, size)]
        calls: list[Any] = [protocol.held_below(self._client.keys, self.label, dates, *place) for place in places]
        return {part: _total(plan, held) for rows in (yield calls) for part, held in rows}

    def _other(self, query: SeriesQuery) -> Reading:
        return Reading(self._client, query, self._clock)

    def _ask_total(self) -> Steps[Bucket]:
        plan = self.query.plan(cover, int(self._clock()))
        return _total(plan, (yield from self._read(plan)))

    def _ask_series(self) -> Steps[list[Bucket]]:
        plan = self.query.plan(row, int(self._clock()))
        held = yield from self._read(plan)
        cuts = [(piece.level.cut, piece) for piece in plan.pieces]
        edges = [(at, cut.after(at)) for cut, piece in cuts for at in cut.walk(piece.start, piece.end)]
        return [_bucket(*edge, counts, plan.exact) for edge, counts in zip(edges, held, strict=True)]

    def _ask_children(self, limit: int | None) -> Steps[list[Reading]]:
        names: list[str] = []
        while limit is None or len(names) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(names))
            found: list[str] = yield protocol.children(self._client.keys, self.label, len(names), size)
            names += found
            if len(found) < size:
                break
        above = f"{self.label}/" if self.label else ""
        return [self._other(replace(self.query, label=above + name)) for name in sorted(set(names))]

    def _read(self, plan: Plan) -> Steps[list[protocol.Held]]:
        names = [f"{date}:{self.label}" for date, _ in plan.buckets()]
        held: list[protocol.Held] = []
        for first in range(0, len(names), protocol.READ):
            call: Any = protocol.read(self._client.keys, names[first : first + protocol.READ], self.query.fields)
            held += yield call
        return held

    def __repr__(self) -> str:
        query = self.query
        start, end = ((EPOCH + timedelta(seconds=at)).isoformat() for at in (query.start, query.end))
        return f"<Reading of {query.label or '/'} by {query.every} from {start} to {end}>"


def ask(client: Client, totals: Sequence[Reading], series: Sequence[Reading] = ()) -> None:
    """Ask for several readings' totals and series: one round trip, and one more per 1,000 buckets of the largest."""
    client.drive(together([one.learn_total() for one in totals] + [one.learn_series() for one in series]))


PERCENTS = (50, 90, 99)


def series_document(label: str, every: str, total: Bucket, series: Sequence[Bucket]) -> dict[str, Any]:
    return {
        "label": label, "every": every, "exact": total.exact, "start": total.start, "end": total.end,
        "counts": dict(total.counts), "observed": _percentiles(total),
        "units": {field: unit for field in (*total.counts, *total.histograms) if (unit := unit_of(label, field))},
        "series": [
            {"start": bucket.start, "counts": dict(bucket.counts), "observed": _percentiles(bucket)}
            for bucket in series
        ],
    }  # fmt: skip


def _percentiles(bucket: Bucket) -> dict[str, dict[str, float]]:
    return {
        name: {"count": found.count, "mean": found.mean} | {f"p{p}": found.percentile(p) for p in PERCENTS}
        for name, found in bucket.histograms.items()
    }
