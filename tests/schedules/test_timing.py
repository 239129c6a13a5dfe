from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import takewhile

import pytest

from headrace.errors import OptionsError
from headrace.schedules.timetables import (
    AHEAD,
    MOST_MISSED,
    Cron,
    Every,
    Timing,
    jitter,
    moment_of,
    refilled,
    timing_of,
)

NOW = moment_of("now", datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC))
MINUTE = 60_000_000
DAY = 1440 * MINUTE


def test_jitter_follows_from_name_and_tick_and_stays_within() -> None:
    found = [jitter("a", NOW + n * MINUTE, 30_000_000) for n in range(2000)]
    assert found == [jitter("a", NOW + n * MINUTE, 30_000_000) for n in range(2000)]
    assert found != [jitter("b", NOW + n * MINUTE, 30_000_000) for n in range(2000)]
    assert 0 <= min(found) < 1_000_000 < 29_000_000 < max(found) <= 30_000_000
    assert sum(found) / 2000 == pytest.approx(15_000_000, rel=0.05)
    assert jitter("a", NOW, 0) == 0


def test_ticks_ahead_keep_to_their_bounds() -> None:
    timing = Timing("*/5 * * * *", start=NOW + 60 * MINUTE, until=NOW + 75 * MINUTE)
    assert [(tick - NOW) // MINUTE for tick in timing.after(NOW)] == [64, 69, 74]
    # A tick at the very start, and at the very end, counts.
    at = NOW - 30_000_000 + 5 * MINUTE
    assert list(Timing("*/5 * * * *", start=at, until=at).after(NOW)) == [at]


@pytest.mark.parametrize(
    "timing", [Timing("*/5 * * * *"), Timing(step=300_000_000), Timing("*/5 * * * *", "Europe/Berlin")]
)
@pytest.mark.parametrize("away", [0, MINUTE, 7 * MINUTE, DAY, 40 * DAY, 3650 * DAY])
def test_what_was_missed_is_found_whatever_the_outage(timing: Timing, away: int) -> None:
    last = next(timing.after(NOW - away - 300_000_000))
    search = timing.missed(last, NOW, 1)
    wanted = list(takewhile(lambda tick: tick <= NOW, timing.after(last))) if away <= 40 * DAY else None
    if wanted is not None:
        assert search.ticks == wanted[-1:]
        assert search.passed == max(0, len(wanted) - 1) or (search.more and search.passed < len(wanted))
    else:
        assert NOW - 300_000_000 < search.ticks[0] <= NOW
        assert search.more
    all_of_them = timing.missed(last, NOW, MOST_MISSED)
    assert all_of_them.ticks[-1:] == search.ticks
    assert len(all_of_them.ticks) == (min(MOST_MISSED, len(wanted)) if wanted is not None else MOST_MISSED)


def test_a_rare_tick_is_found_too() -> None:
    timing = Timing("0 0 29 2 *")
    last = moment_of("last", datetime(2020, 2, 29, tzinfo=UTC))
    assert timing.missed(last, NOW, 1).ticks == [moment_of("leap", datetime(2024, 2, 29, tzinfo=UTC))]
    assert timing.missed(moment_of("last", datetime(2024, 2, 29, tzinfo=UTC)), NOW, 1).ticks == []


WEEKDAYS = Timing("* * * * MON-FRI")
ENDED = Timing(step=1_000_000, until=NOW - DAY)


@pytest.mark.parametrize("timing", [WEEKDAYS, ENDED], ids=["weekdays", "ended"])
@pytest.mark.parametrize("most", [1, MOST_MISSED])
@pytest.mark.parametrize("away", [DAY, 2 * DAY, 9 * DAY, 400 * DAY])
def test_many_ticks_before_a_pause_are_found(timing: Timing, most: int, away: int) -> None:
    # It is Sunday: the last tick of the week was at the end of Friday. The other ended a day ago.
    newest = moment_of("newest", datetime(2026, 2, 27, 23, 59, tzinfo=UTC)) if timing is WEEKDAYS else NOW - DAY
    last = next(timing.after(newest - away))
    search = timing.missed(last, NOW, most)
    assert search.ticks[-1] == newest
    assert len(search.ticks) == most
    assert search.more


def test_missed_ticks_of_a_short_interval_are_not_told_as_all_of_them() -> None:
    search = Timing(step=1_000_000).missed(NOW - 3600 * 1_000_000, NOW, 1)
    assert (len(search.ticks), search.passed, search.more) == (1, 1000, True)
    search = Timing(step=1_000_000).missed(NOW - 1001 * 1_000_000, NOW, 1)
    assert (len(search.ticks), search.passed, search.more) == (1, 1000, False)


def test_a_refill_has_what_was_missed_and_what_comes() -> None:
    timing = Timing("*/5 * * * *")
    last = next(timing.after(NOW - 60 * MINUTE))
    ticks, search = refilled(timing, last, NOW, 2)
    assert [tick <= NOW for tick in ticks] == [True, True] + AHEAD * [False]
    assert search.passed == 9
    assert not search.more
    assert ticks == sorted(ticks)
    later, _ = refilled(timing, ticks[-1], NOW, 2)
    assert later[0] - ticks[-1] == 300_000_000


def test_times_that_cannot_be_are_refused() -> None:
    five = Cron("*/5 * * * *")
    with pytest.raises(OptionsError, match="jitter"):
        timing_of(five, "a", 300_000_000, 0, 0, NOW)
    with pytest.raises(OptionsError, match="jitter"):
        timing_of(Every(10), "a", 10_000_000, 0, 0, NOW)
    with pytest.raises(OptionsError, match="before start"):
        timing_of(five, "a", 0, NOW + DAY, NOW, NOW)
    with pytest.raises(OptionsError, match="no tick"):
        timing_of(five, "a", 0, 0, NOW - DAY, NOW)
    with pytest.raises(OptionsError, match="no tick"):
        timing_of(Cron("0 0 29 2 *"), "a", 0, NOW, NOW + DAY, NOW)
    with pytest.raises(OptionsError, match="no tick"):
        timing_of(Cron("0 0 29 2 *"), "a", 0, NOW, NOW + DAY, NOW + 9 * DAY, code=True)
    assert timing_of(five, "a", MINUTE, 0, NOW - DAY, NOW, code=True).until == NOW - DAY
    kept = timing_of(Cron("0 9 * * *", timezone="Europe/Berlin"), "a", MINUTE, NOW, NOW + 9 * DAY, NOW)
    assert kept == Timing("0 9 * * *", "Europe/Berlin", jitter=MINUTE, start=NOW, until=NOW + 9 * DAY)
    assert timing_of(Every(timedelta(hours=6), 5), "a", 0, 0, 0, NOW).timetable == Every(21600.0, 5.0)


@pytest.mark.parametrize(
    ("expression", "zone", "most"),
    [
        ("0 9 * * *", "Europe/Berlin", 23 * 60),
        ("0 9 * * 6,7", "Europe/Berlin", 23 * 60),
        ("0 */6 * * *", "America/New_York", 5 * 60),
        ("0,30 1-5 * * *", "Australia/Lord_Howe", 30),
        ("0 9 * * *", "Asia/Tokyo", 24 * 60),
        ("0 0 */3 * *", "Europe/Berlin", 24 * 60),
    ],
)
def test_it_does_not_go_by_the_date_which_jitter_is_refused(expression: str, zone: str, most: int) -> None:
    """A deploy far from a change of the clocks would accept what a restart near it refuses, at the import."""
    for month in range(12):
        now = NOW + month * 30 * DAY
        assert timing_of(Cron(expression, zone), "a", most * MINUTE - 1, 0, 0, now).jitter
        with pytest.raises(OptionsError, match="jitter must be less"):
            timing_of(Cron(expression, zone), "a", most * MINUTE, 0, 0, now)
