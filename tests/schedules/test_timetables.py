from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest

from headrace.errors import OptionsError
from headrace.schedules.timetables import Cron, Every, moment_of, time_of
from tests.schedules.zones import CHANGES, ticks

EXPRESSIONS = [
    "* * * * *", "*/7 * * * *", "0 * * * *", "30 * * * *", "*/15 2 * * *", "*/30 0 * * *", "0 */2 * * *", "15 */3 * * *",
    "0 0 * * *", "30 0 * * *", "15 1 * * *", "45 1 * * *", "0 2 * * *", "30 2 * * *", "0,30 2,3 * * *", "59 23 * * *",
    "0 3 * * *", "30 12 * * *", "0 0 * * 0", "*/20 * * * 0", "0 * 1 * *", "30 2 * * 6,0", "10-20/5 1-3 * * *",
]  # fmt: skip
CASES = [(zone, day) for zone, days in CHANGES.items() for day in days]


@pytest.mark.parametrize(("zone", "day"), CASES)
def test_ticks_around_a_change_of_clocks_are_those_of_the_slow_way(zone: str, day: str) -> None:
    start = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(hours=36)
    end = start + timedelta(days=3)
    for expression in EXPRESSIONS:
        found: list[datetime] = []
        for tick in Cron(expression, zone).after(moment_of("start", start)):
            if (time := time_of(tick)) > end:
                break
            found.append(time)
        assert found == ticks(expression, zone, start, end), expression


@pytest.mark.parametrize(("zone", "day"), CASES)
def test_wherever_one_begins_the_next_tick_is_the_same(zone: str, day: str) -> None:
    """What is computed ahead in pieces, by several workers, must not depend on where a piece begins."""
    start = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(hours=24)
    for expression in ["*/15 * * * *", "45 1 * * *", "30 2 * * *", "0 0 * * *", "*/30 1 * * *"]:
        wanted = ticks(expression, zone, start - timedelta(days=1), start + timedelta(days=4))
        for minutes in range(0, 48 * 60, 29):
            begin = start + timedelta(minutes=minutes, seconds=minutes % 60, microseconds=minutes)
            expected = next(time for time in wanted if time > begin)
            assert time_of(next(Cron(expression, zone).after(moment_of("start", begin)))) == expected, begin


def test_what_debian_does_at_a_gap_and_at_a_fold() -> None:
    def of(expression: str, start: str, count: int) -> list[str]:
        begin = moment_of("start", datetime.fromisoformat(start))
        return [
            time_of(tick).strftime("%d %H:%M") for tick in islice(Cron(expression, "Europe/Berlin").after(begin), count)
        ]

    # 02:00 to 03:00 is left out on the 29th: right after the gap, once.
    assert of("30 2 * * *", "2026-03-28T00:00Z", 3) == ["28 01:30", "29 01:00", "30 00:30"]
    assert of("0,30 2 * * *", "2026-03-29T00:00Z", 3) == ["29 01:00", "30 00:00", "30 00:30"]
    # 02:00 to 03:00 comes twice on the 25th: the first of the two.
    assert of("30 2 * * *", "2026-10-24T12:00Z", 2) == ["25 00:30", "26 01:30"]
    # Elapsed time.
    assert of("30 * * * *", "2026-10-25T00:00Z", 3) == ["25 00:30", "25 01:30", "25 02:30"]


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("* * * *", "five fields"),
        ("* * * * * *", "app.every"),
        ("", "five fields"),
        ("@daily", "write '0 0 * * *'"),
        ("@reboot", "not events"),
        ("61 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day-of-month"),
        ("* * * 13 *", "month"),
        ("* * * * 8", "day-of-week"),
        ("* * * * MON#6", "day-of-week"),
        ("*/0 * * * *", "minute"),
        ("5-1 * * * *", "minute"),
        ("0 0 30 2 *", "never comes"),
        ("0 0 31 4,6 *", "never comes"),
        ("x * * * *", "minute"),
        ("L-/ * * * *", "minute"),
        ("* * * * L", "day-of-week"),
        ("* * */L * *", "day-of-month"),
        (None, "five fields"),
    ],
)
def test_what_is_no_expression_is_refused_and_the_field_is_named(expression: str, says: str) -> None:
    with pytest.raises(OptionsError, match=says.replace("*", r"\*")):
        Cron(expression)


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("*/90 * * * *", "minute .* write '0' for that one value, or app.every(timedelta(minutes=90), ...)"),
        ("*/60 * * * *", "timedelta(minutes=60)"),
        ("0,10/55 * * * *", "'10/55', field minute .* write '10'"),
        ("10-20/15 * * * *", "write '10'"),
        ("0 */36 * * *", "hour .* or app.every(timedelta(hours=36), ...)"),
        ("0 0 */40 * *", "day-of-month .* write '1' .* app.every(timedelta(days=40), ...)"),
        ("0 0 1 */12 *", "month .* write '1' for that one value$"),
        ("0 0 * * */7", "day-of-week .* write '0' for that one value$"),
        ("0 0 * * MON/9", "write 'MON'"),
    ],
)
def test_a_step_longer_than_its_range_is_refused(expression: str, says: str) -> None:
    with pytest.raises(OptionsError, match=says.replace("(", r"\(").replace(")", r"\)")):
        Cron(expression)


@pytest.mark.parametrize("steps", ["*/59 * * * *", "0 */23 * * *", "0 0 */30 * *", "0 0 1 */11 *", "0 0 * * 1/6"])
def test_the_longest_step_of_each_field_ticks(steps: str) -> None:
    assert next(Cron(steps).after(0)) > 0


@pytest.mark.parametrize("expression", ["0 0 29 2 *", "0 0 L * *", "0 0 LW * *", "0 0 * * 5L", "0 9 * JAN-MAR MON#2"])
def test_rare_days_come(expression: str) -> None:
    assert next(Cron(expression, "Europe/Berlin").after(0)) > 0


def test_a_zone_is_known_or_named() -> None:
    with pytest.raises(OptionsError, match="did you mean Europe/Berlin"):
        Cron("* * * * *", timezone="Europe/Berln")
    for name in ("", "../etc/passwd", "Nowhere/At_All_xyz", "\0"):
        with pytest.raises(OptionsError):
            Cron("* * * * *", timezone=name)


def test_intervals_are_aligned_to_the_epoch() -> None:
    six = Every(timedelta(hours=6), offset=timedelta(hours=5))
    start = moment_of("start", datetime(2026, 1, 1, 12, tzinfo=UTC))
    assert [time_of(tick).hour for tick in islice(six.after(start), 5)] == [17, 23, 5, 11, 17]
    exactly = moment_of("start", datetime(2026, 1, 1, 17, tzinfo=UTC))
    assert time_of(next(six.after(exactly))).hour == 23
    assert time_of(next(six.after(exactly - 1))).hour == 17
    assert next(Every(1.5).after(0)) == 1_500_000


@pytest.mark.parametrize(
    ("interval", "offset"), [(0.9, 0), (0, 0), (-1, 0), (5, 5), (5, -1), ("5", 0), (1.00005, 0), (float("nan"), 0)]
)
def test_intervals_that_cannot_be_are_refused(interval: float, offset: float) -> None:
    with pytest.raises(OptionsError):
        Every(interval, offset=offset)


def test_a_moment_has_a_zone() -> None:
    with pytest.raises(OptionsError, match="no time zone"):
        moment_of("until", datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(OptionsError, match="datetime"):
        moment_of("until", 5)  # type: ignore[arg-type]
