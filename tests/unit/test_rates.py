"""Rates that are declared, what they cost, and what is stored of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from headrace import Headrace, Rate
from headrace.errors import OptionsError
from headrace.model.limit_rules import rate_fields, rate_of
from headrace.model.notation import changes_of


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"n": 0}, "n must be a number above 0"),
        ({"n": 1, "shape": "bucket"}, "shape must be one of even, window, clock, not 'bucket'"),
        ({"n": 2.5, "shape": "window"}, "n must be a whole number, not 2.5"),
        ({"n": 2, "shape": "window", "burst": 1}, "burst goes with evenly spread starts"),
        ({"n": 2, "shape": "clock", "per": 7}, "per must be a part of a day, a day or a week, not 7"),
        ({"n": 2, "shape": "clock", "per": 2 * 86400}, "per must be a part of a day"),
        ({"n": 2, "shape": "window", "timezone": "Europe/Berlin"}, "a time zone goes with shape="),
    ],
)
def test_a_rate_that_cannot_be_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionsError) as found:
        Rate(**given)
    assert text in str(found.value)


def test_an_unknown_zone_names_the_nearest() -> None:
    with pytest.raises(OptionsError, match="did you mean Europe/Berlin"):
        Rate(1, per=86400, shape="clock", timezone="Europe/Berlim")


@pytest.mark.parametrize(
    "rate",
    [
        Rate(0.5, per=timedelta(minutes=1), burst=3),
        Rate(10, per=60, shape="window"),
        Rate(1000, per=86400, shape="clock", timezone="Europe/Berlin"),
        Rate(5, per=604800, shape="clock"),
    ],
)
def test_what_is_stored_is_read_again(rate: Rate) -> None:
    found = rate_of(rate_fields(rate))
    assert found is not None
    assert rate_fields(found) == rate_fields(rate)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Kathmandu"])
def test_the_changes_of_a_zone_say_its_offset_at_any_time(zone: str) -> None:
    numbers = [int(word) for word in changes_of(zone).split()]
    for hours in range(0, 24 * 365 * 4, 7):
        at = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=hours)
        told = [ahead for since, ahead in zip(numbers[::2], numbers[1::2], strict=True) if since <= at.timestamp()][-1]
        offset = at.astimezone(ZoneInfo(zone)).utcoffset()
        assert offset is not None
        assert told == offset.total_seconds(), at


@pytest.mark.parametrize("shape", ["window", "clock"])
def test_a_cost_that_can_never_fit_is_refused_at_the_call(shape: Any) -> None:
    app = Headrace("redis://localhost:1")
    quota = app.limit("quota", Rate(10, per=60, shape=shape))
    app.limit("small", Rate(3, per=60, shape=shape), queue="small")
    app.limit("even", Rate(1, per=60), queue="even")

    @app.task(limits=[quota], cost=10, name="call")
    def call() -> None: ...

    with pytest.raises(OptionsError, match=r"cost=11 can never start: limit quota has 10 in each of its windows"):
        call.options(cost=11)
    with pytest.raises(OptionsError, match=r"cost=10 can never start: limit small"):
        call.options(queue="small")
    with pytest.raises(OptionsError, match="limit small"):
        app.by_name("other").options(queue="small", cost=4)
    call.options(queue="even").options(cost=2)
    with pytest.raises(OptionsError, match=r"task .*: cost=11 can never start"):
        app.task(limits=[quota], cost=11, name="other")(lambda: None)


def test_a_worker_refuses_a_task_whose_cost_can_never_fit_a_limit_that_was_declared_after_it() -> None:
    app = Headrace("redis://localhost:1")

    @app.task(limits=["quota"], cost=11, name="call")
    def call() -> None: ...

    app.limit("quota", Rate(10, per=60, shape="window"))
    with pytest.raises(OptionsError, match="cost=11 can never start"):
        app.limits.declared()


def test_a_job_has_four_limits_at_most() -> None:
    app = Headrace("redis://localhost:1")
    names = [app.limit(f"l{n}", Rate(n + 1)).name for n in range(5)]
    with pytest.raises(OptionsError, match="a job has at most 4 limits, not 5"):
        app.task(limits=names, name="many")(lambda: None)
    with pytest.raises(OptionsError, match="names one limit twice"):
        app.task(limits=[names[0], names[0]], name="twice")(lambda: None)
    app.limit("bulk", Rate(9), queue="bulk")
    app.task(limits=names[:4], name="full")(lambda: None)
    app.limits.declared()
    app.task(limits=names[:4], name="fuller", queue="bulk")(lambda: None)
    with pytest.raises(OptionsError, match="jobs of fuller have the limits bulk, l0, l1, l2, l3: a job has at most 4"):
        app.limits.declared()


@pytest.mark.parametrize("cost", [0, -1, 1.5, True, "2", 10**10])
def test_a_cost_is_a_whole_number(cost: Any) -> None:
    app = Headrace("redis://localhost:1")
    with pytest.raises(OptionsError, match="cost must be a whole number from 1"):
        app.by_name("call").options(cost=cost)
