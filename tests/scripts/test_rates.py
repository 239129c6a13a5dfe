"""rates.lua: when a rate lets jobs start that cost different amounts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from headrace.model.limit_rules import LimitRule, Rate
from headrace.model.notation import changes_of
from headrace.protocol import operations
from tests.scripts.limited_stage import declare, gate, ids, promote, put
from tests.scripts.stage import SECOND, Stage

SLOW = LimitRule("slow", Rate(10, per=1000))


def test_a_dear_job_starts_when_the_gate_is_open_and_closes_it_for_its_worth(stage: Stage) -> None:
    declare(stage, {"call": [SLOW]})
    begun = stage.now
    (dear,) = put(stage, 1, cost=5)
    put(stage, 2)
    assert ids(stage.take(limit=10)) == [dear]
    assert stage.claim().due == begun + 490 * SECOND
    stage.now = begun + 490 * SECOND
    promote(stage)
    assert len(stage.take(limit=10)) == 1


def test_a_dear_job_takes_as_many_turns(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("fair", by="account")]})
    x = put(stage, *["x"] * 3, cost=2)
    y = put(stage, *["y"] * 6)
    assert ids(stage.take(limit=6)) == [x[0], y[0], y[1], x[1], y[2], y[3]]


def test_only_the_last_start_gives_its_permit_back(stage: Stage) -> None:
    declare(stage, {"call": [SLOW]})
    begun = stage.now
    put(stage, *range(3))
    (first,) = stage.take(limit=1)
    stage.now = begun + 100 * SECOND
    promote(stage)
    (second,) = stage.take(limit=1)
    stage.end(first, "released")
    assert gate(stage, "slow:")[0] == begun + 190 * SECOND
    stage.end(second, "released")
    assert len(stage.take(limit=10)) == 1


def due(stage: Stage) -> int:
    """When the next gate opens."""
    return int(stage.client.zscore(stage.keys("scheduled"), "~") or 0)


def starts(stage: Stage, count: int) -> list[float]:
    """When so many jobs start that all wait, by seconds from now: each as soon as its gate opens."""
    begun, found = stage.now, list[float]()
    for _ in range(100 + count):
        promote(stage)
        found += [(stage.now - begun) / SECOND] * len(stage.take(limit=count - len(found)))
        if len(found) == count:
            return found
        assert due(stage) > stage.now
        stage.now = due(stage)
    raise AssertionError(found)


def test_no_window_has_more_starts_than_it_may_and_it_is_used_to_a_hundredth(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("quota", Rate(100, per=128, shape="window"))]})
    put(stage, *range(400))
    times = starts(stage, 400)
    assert all(later - first >= 128 for first, later in zip(times, times[100:], strict=False))
    assert times[-1] <= 3 * 129


def test_starts_that_were_spread_leave_the_window_one_after_the_other(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("quota", Rate(3, per=128, shape="window"))]})
    put(stage, *range(6))
    begun = stage.now
    for seconds in (0, 40, 80):
        stage.now = begun + seconds * SECOND
        assert len(stage.take(limit=1)) == 1
    assert starts(stage, 3) == [49, 89, 129]


def test_a_dear_job_closes_a_window_until_it_fits(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("quota", Rate(10, per=128, shape="window"))]})
    put(stage, *range(6))
    assert len(stage.take(limit=6)) == 6
    (dear,) = put(stage, "dear", cost=8)
    stage.now += SECOND
    put(stage, *["cheap"] * 5)
    # Two units are left: a cheap one would fit, and does not overtake.
    assert stage.take(limit=10) == []
    assert due(stage) == stage.now + 128 * SECOND
    stage.now += 128 * SECOND
    promote(stage)
    first, *rest = ids(stage.take(limit=10))
    assert (first, len(rest)) == (dear, 2)


def test_a_job_that_costs_more_than_there_is_by_now_takes_all(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("quota", Rate(10, per=128, shape="window"))]})
    put(stage, 1, cost=500)
    put(stage, 2)
    assert len(stage.take(limit=10)) == 1


def test_what_did_not_start_leaves_the_window(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("quota", Rate(2, per=128, shape="window"))]})
    put(stage, *range(3))
    first, _ = stage.take(limit=10)
    stage.now += 64 * SECOND
    stage.end(first, "released")
    assert len(stage.take(limit=10)) == 1
    assert stage.take(limit=10) == []


ZONES = (
    "UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Casablanca",
    "Asia/Kathmandu", "America/Santiago", "Asia/Beirut", "America/Havana", "Africa/Cairo", "America/St_Johns",
)  # fmt: skip


def changes(zone: str) -> list[int]:
    """Seconds since 1970 at which the clocks of a zone change in 2024."""
    times = [int(word) for word in changes_of(zone).split()[::2]] if zone != "UTC" else []
    return [time for time in times if 1_704_067_200 <= time < 1_735_689_600]


@pytest.mark.parametrize("zone", ZONES)
def test_a_day_begins_when_its_clock_says_so(stage: Stage, zone: str) -> None:
    daily, here = Rate(1, per=86400, shape="clock", timezone=zone), ZoneInfo(zone)
    for change in [1_710_000_000, *changes(zone)]:
        for before in (90_000, 1800, -1800):
            stage.now = (change - before) * SECOND
            declare(stage, {"call": [LimitRule(f"daily-{change}-{before}", daily)]})
            put(stage, 1, 2)
            assert len(stage.take(limit=10)) == 1
            (late,) = starts(stage, 1)
            begun, last, opened = (
                datetime.fromtimestamp(change - before + seconds, here).date() for seconds in (0, late - 1, late)
            )
            assert begun == last < opened
            stage.run(operations.purge(stage.keys, "default", 1000))


@pytest.mark.parametrize(
    ("per", "zone", "now", "opens"),
    [
        (60, "UTC", "2024-03-01T10:00:30", "2024-03-01T10:01:00"),
        (3600, "Asia/Kathmandu", "2024-03-01T10:00:30", "2024-03-01T10:15:00"),
        (7 * 86400, "UTC", "2024-03-01T10:00:30", "2024-03-04T00:00:00"),
        (6 * 3600, "Europe/Berlin", "2024-10-27T00:30:00", "2024-10-27T05:00:00"),
        # An hour lasts an hour, also the one that the clock shows twice.
        (3600, "Europe/Berlin", "2024-10-27T00:30:00", "2024-10-27T01:00:00"),
        (3600, "Europe/Berlin", "2024-10-27T01:30:00", "2024-10-27T02:00:00"),
    ],
)
def test_periods_of_the_clock(stage: Stage, per: int, zone: str, now: str, opens: str) -> None:
    declare(stage, {"call": [LimitRule("quota", Rate(2, per=per, shape="clock", timezone=zone))]})
    stage.now = round(datetime.fromisoformat(now + "+00:00").timestamp()) * SECOND
    put(stage, *range(5))
    assert len(stage.take(limit=10)) == 2
    assert datetime.fromtimestamp(due(stage) / SECOND, UTC).isoformat() == opens + "+00:00"


def test_a_dear_job_waits_for_the_next_period(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("quota", Rate(5, per=60, shape="clock"))]})
    stage.now = 1_700_000_040 * SECOND
    put(stage, 1, 2, 3)
    assert len(stage.take(limit=3)) == 3
    (dear,) = put(stage, 4, cost=4)
    stage.now += 1
    put(stage, 5)
    assert stage.take(limit=10) == []
    stage.now += 60 * SECOND
    promote(stage)
    assert ids(stage.take(limit=1)) == [dear]


def test_a_clock_that_is_set_back_over_a_boundary_gives_no_quota_twice(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("quota", Rate(2, per=60, shape="clock"))]})
    stage.now = 1_700_000_040 * SECOND + SECOND
    put(stage, *range(10))
    assert len(stage.take(limit=10)) == 2
    stage.now -= 2 * SECOND
    put(stage, 1)
    assert stage.take(limit=10) == []
    stage.now += 2 * SECOND
    promote(stage)
    assert stage.take(limit=10) == []
    stage.now += 60 * SECOND
    promote(stage)
    assert len(stage.take(limit=10)) == 2


@pytest.mark.parametrize("shape", ["window", "clock"])
def test_numbers_that_changed_to_another_shape_forget_what_was_counted(stage: Stage, shape: Any) -> None:
    declare(stage, {"call": [LimitRule("quota", Rate(2, per=60, shape=shape))]})
    put(stage, *range(10))
    assert len(stage.take(limit=10)) == 2
    other: Any = "clock" if shape == "window" else "window"
    declare(stage, {"call": [LimitRule("quota", Rate(3, per=60, shape=other))]})
    promote(stage)
    assert len(stage.take(limit=10)) == 3
