"""Range plans: equal to counting every event, never on what has expired, and short."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.stats.reading import MARGIN, MAX_PLAN_READS, Plan, cover, row
from headrace.stats.resolutions import Resolutions, layout_of

YEARS = layout_of("minute=90y hour=90y day=90y month=90y quarter=90y year=90y")
T0 = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp())
DAY = 86400


def at(*when: int) -> int:
    return int(datetime(*when, tzinfo=UTC).timestamp())  # type: ignore[arg-type,misc]


def stored(layout: Resolutions, events: dict[int, int], now: int) -> Counter[str]:
    """What the buckets hold at ``now``, if each event was added when it happened."""
    found: Counter[str] = Counter()
    for moment, n in events.items():
        for level in layout.levels:
            if level.ends(moment) > now:
                found[level.cut.date(moment)] += n
    return found


def told(plan: Plan, buckets: Counter[str]) -> int:
    return sum(sign * buckets[date] for date, sign in plan.buckets())


times = st.integers(T0, T0 + 800 * DAY)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(times, st.integers(-5, 9), max_size=40), times, times,
    st.sampled_from(["minute", "hour", "day", "month", "quarter", "year"]),
    st.sampled_from(["minute=90y hour=90y day=90y month=90y quarter=90y year=90y", "hour=90y day=90y quarter=90y", "minute=90y day=90y", "hour=90y month=90y", "minute=90y hour=90y day=90y"]),
)  # fmt: skip
def test_a_plan_counts_what_happened(events: dict[int, int], one: int, other: int, every: str, text: str) -> None:
    layout = layout_of(text)
    if every not in text:
        return
    level = layout.level(every)
    start, end = sorted((level.cut.floor(one), level.cut.floor(other)))
    plan = cover(layout, level, start, end, T0)
    assert plan.exact
    assert (plan.start, plan.end) == (start, end)
    assert told(plan, stored(layout, events, T0)) == sum(n for t, n in events.items() if start <= t < end)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(times, st.integers(1, 9), max_size=60), times, times,
    st.integers(T0, T0 + 2000 * DAY), st.sampled_from(["minute", "hour", "day", "month"]),
)  # fmt: skip
def test_what_has_expired_is_never_used(events: dict[int, int], one: int, other: int, now: int, every: str) -> None:
    layout = layout_of("minute=2d hour=30d day=300d month=900d")
    level = layout.level(every)
    start, end = sorted((level.cut.floor(one), level.cut.floor(other)))
    plan = cover(layout, level, start, end, now)
    for piece in plan.pieces:
        assert piece.level.ends(piece.start) > now + MARGIN
    # What the plan says that it covers is what it counts, whatever has expired meanwhile.
    assert told(plan, stored(layout, events, now)) == sum(n for t, n in events.items() if plan.start <= t < plan.end)
    if plan.exact:
        assert (plan.start, plan.end) == (start, end)
    elif plan.pieces:
        cut = next(le for le in layout.levels if le.cut.floor(plan.start) == plan.start).cut
        assert plan.start <= start or not alive(layout, plan.start - 1, now), cut


def alive(layout: Resolutions, moment: int, now: int) -> bool:
    return any(level.ends(moment) > now + MARGIN for level in layout.levels)


HOURS = layout_of("hour=90y day=90y month=90y quarter=90y year=90y")


@cache
def neighbours(point: int) -> frozenset[int]:
    """Where one bucket of any level leads to from there, in either direction."""
    levels = [level for level in HOURS.levels if level.cut.floor(point) == point]
    return frozenset(to for level in levels for to in (level.cut.after(point), level.cut.floor(point - 1)))


def fewest(start: int, end: int) -> int:
    """The length of the shortest way from start to end: steps from both, since each can be taken backwards."""
    seen, edges, steps = ({start}, {end}), [{start}, {end}], 0
    while not edges[0] & edges[1]:
        side = steps % 2
        edges[side] = {to for point in edges[side] for to in neighbours(point)} - seen[side]
        seen[side].update(edges[side])
        steps += 1
    return steps


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 24 * 120), st.integers(1, 24 * 100))
def test_no_plan_is_shorter(first: int, length: int) -> None:
    start, end = T0 + first * 3600, T0 + (first + length) * 3600
    assert cover(HOURS, HOURS.level("hour"), start, end, T0).reads == fewest(start, end)


QUARTERS = layout_of("hour=90y day=90y month=90y quarter=90y")
BAR = 60


def test_a_calendar_year_of_hours_is_few_reads() -> None:
    layout = layout_of("hour=90y day=90y month=90y year=90y")
    hour = layout.level("hour")
    assert cover(layout, hour, at(2025, 1, 1), at(2026, 1, 1), T0).reads == 1
    assert cover(QUARTERS, hour, at(2025, 1, 1), at(2026, 1, 1), T0).reads == 4
    assert cover(QUARTERS, hour, at(2025, 7, 1), at(2026, 7, 1), T0).reads == 4


@pytest.mark.parametrize("year", [2025, 2027])
def test_any_year_of_hours_is_at_most_sixty_reads(year: int) -> None:
    """Each of the 365 days that begin at an hour of a year; those of 2027 hold the 29th of February."""
    hour = QUARTERS.level("hour")
    starts = range(at(year, 1, 1), at(year + 1, 1, 1), 3600)
    assert max(cover(QUARTERS, hour, start, start + 365 * DAY, T0).reads for start in starts) <= BAR


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 24 * 3000), st.integers(1, 24 * 365), st.booleans())
def test_no_shorter_range_of_hours_takes_more(first: int, length: int, years: bool) -> None:
    layout = layout_of("hour=90y day=90y month=90y quarter=90y year=90y") if years else QUARTERS
    start = T0 + first * 3600
    assert cover(layout, layout.level("hour"), start, start + length * 3600, T0).reads <= BAR


def test_a_long_way_without_coarse_buckets_only_adds() -> None:
    layout = layout_of("minute=90y")
    plan = cover(layout, layout.level("minute"), at(2025, 1, 1), at(2025, 2, 1), T0)
    assert plan.reads == 31 * 1440 > MAX_PLAN_READS
    plan = cover(layout_of("second=90y day=90y"), layout_of("second=90y").levels[0], T0 + 1, T0 + 80000, T0)
    assert all(piece.sign == 1 for piece in plan.pieces)


def test_a_series_has_each_bucket() -> None:
    plan = row(YEARS, YEARS.level("month"), at(2024, 1, 1), at(2025, 3, 1), T0)
    assert [date for date, _ in plan.buckets()] == [f"{2024 + m // 12}{m % 12 + 1:02}" for m in range(14)]


def test_a_series_that_has_expired_is_coarser() -> None:
    layout = layout_of("minute=1h hour=2d day=300d")
    now = at(2026, 3, 10)
    plan = row(layout, layout.level("minute"), at(2026, 3, 9, 3, 7), at(2026, 3, 9, 5, 1), now)
    assert [date for date, _ in plan.buckets()] == ["2026030903", "2026030904", "2026030905"]
    assert not plan.exact
    gone = row(layout, layout.level("minute"), at(2020, 3, 9), at(2020, 3, 10), now)
    assert (gone.pieces, gone.exact) == ((), False)


@pytest.mark.parametrize("plan", [cover, row])
def test_an_empty_range_is_no_read(plan: object) -> None:
    made: Plan = plan(YEARS, YEARS.level("hour"), T0, T0, T0)  # type: ignore[operator]
    assert (made.reads, made.exact) == (0, True)
