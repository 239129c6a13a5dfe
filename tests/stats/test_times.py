from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionsError
from headrace.settings import Settings
from headrace.stats.resolutions import RESOLUTIONS, instant, layout_of

MOMENT = int(datetime(2011, 3, 15, 10, 30, 17, tzinfo=UTC).timestamp())


def test_a_date_tells_its_resolution() -> None:
    """R02, R03."""
    assert {name: cut.date(MOMENT) for name, cut in RESOLUTIONS.items()} == {
        "second": "20110315103017", "minute": "201103151030", "hour": "2011031510", "day": "20110315",
        "month": "201103", "quarter": "20111", "year": "2011",
    }  # fmt: skip


@given(st.integers(instant("0002"), instant("9998") - 1), st.sampled_from(list(RESOLUTIONS)))
def test_a_moment_is_in_its_bucket(at: int, name: str) -> None:
    cut = RESOLUTIONS[name]
    start, end = cut.floor(at), cut.after(at)
    assert start <= at < end
    assert cut.date(start) == cut.date(end - 1) == cut.date(at)
    assert cut.date(start - 1) != cut.date(at) != cut.date(end)
    assert cut.number(end) == cut.number(at) + 1
    assert (cut.ceil(start), cut.ceil(start + 1)) == (start, end)
    assert list(cut.walk(start, cut.after(end))) == [start, end]
    assert len(cut.date(at)) == cut.digits


def test_no_hour_is_repeated_or_left_out_when_clocks_change() -> None:
    """RS8: Berlin has 02:30 twice on this night; they are two hours, and so they are in UTC."""
    berlin, hour = ZoneInfo("Europe/Berlin"), RESOLUTIONS["hour"]
    night = [datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=berlin) for fold in (0, 1)]
    assert [hour.date(instant(at)) for at in night] == ["2026102500", "2026102501"]


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2011, 3, 15, 10, 30, 17, 900_000, tzinfo=UTC),
        datetime(2011, 3, 15, 12, 30, 17, tzinfo=timezone(timedelta(hours=2))),
        MOMENT, MOMENT + 0.5, "2011-03-15T10:30:17Z", "2011-03-15T11:30:17+01:00", "20110315103017",
    ],
)  # fmt: skip
def test_moments_in_every_form(moment: datetime | float | str) -> None:
    """R33."""
    assert instant(moment) == MOMENT


def test_what_is_left_of_a_date_is_its_beginning() -> None:
    """R33."""
    assert instant("2011") == instant("201101") == instant(date(2011, 1, 1)) == instant("2011-01-01")
    assert instant(-0.5) == -1


@pytest.mark.parametrize(
    "moment", [datetime(2011, 1, 1), "2011-01-01T10:00", "soon", "20113", True, None, [], 1e15, float("nan"), "0001"]  # noqa: DTZ001
)  # fmt: skip
def test_what_is_no_moment_is_told(moment: object) -> None:
    with pytest.raises(OptionsError, match="start"):
        instant(moment, "start")  # type: ignore[arg-type]


def test_layouts() -> None:
    layout = layout_of("hour=60d, minute=2d year=20y")
    assert [level.cut.name for level in layout.levels] == ["minute", "hour", "year"]
    assert (
        layout_of(layout.text) == layout == layout_of({"hour": timedelta(days=60), "minute": 172800, "year": 631152000})
    )
    assert (layout.slot, layout_of("year=1y").slot) == (60, 86400)
    layout_of(Settings().stats_keep)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "need a resolution"), ("week=5d", "no resolution 'week'"), ("hour", "write it as"), ("hour=5", "write it as"),
        ("hour=0s", "more than 0"), ("hour=5d day=4d", "day is kept shorter than hour"),
    ],
)  # fmt: skip
def test_layouts_that_cannot_be(text: str, says: str) -> None:
    with pytest.raises(OptionsError, match=says):
        layout_of(text)


def test_the_end_of_a_bucket_is_absolute() -> None:
    """RS11."""
    (level,) = layout_of("hour=1d").levels
    assert level.ends(MOMENT) == level.ends(MOMENT + 60) == instant("2011031511") + 86400


def test_a_resolution_that_is_not_kept_is_told() -> None:
    with pytest.raises(OptionsError, match="take one of hour, day, or add it"):
        layout_of("hour=1d day=2d").level("minute")
