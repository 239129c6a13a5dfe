"""Limits in the kit: they count from the first enqueue of a test on, and open as its clock moves."""

from __future__ import annotations

import enum
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from headrace import Concurrency, Headrace, Rate
from headrace.errors import LaneFull
from headrace.testing import Kit


@pytest.fixture
def app() -> Headrace:
    app = Headrace()
    app.limit("few", Rate(1, per=60), by="account", backlog=2)

    @app.task(name="call", limits=["few"])
    def call(account: str) -> str:
        return account

    return app


def test_a_limit_counts_before_the_first_drain(app: Headrace) -> None:
    call = app.tasks["call"]
    with Kit(app) as kit:
        for _ in range(2):
            call.enqueue("acme")
        with pytest.raises(LaneFull):
            call.enqueue("acme")
        assert kit.drain().starts == 1
        call.enqueue("acme")


def test_what_waits_for_a_rate_starts_when_the_clock_has_moved(app: Headrace) -> None:
    with Kit(app) as kit:
        jobs = [app.tasks["call"].enqueue("acme") for _ in range(2)]
        assert kit.drain().starts == 1
        kit.clock.advance(minutes=1)
        assert kit.drain().starts == 1
        assert [job.result() for job in jobs] == ["acme", "acme"]
        started = sorted(job.refresh().started_us for job in jobs)
        assert started[1] - started[0] >= 59_000_000


def test_a_drain_that_lets_time_pass_waits_for_a_rate(app: Headrace) -> None:
    with Kit(app) as kit:
        for _ in range(2):
            app.tasks["call"].enqueue("acme")
        assert kit.drain(scheduled=True).starts == 2


class Tier(enum.Enum):
    GOLD = "gold"


@pytest.mark.parametrize(
    "default", [UUID(int=1), Tier.GOLD, Decimal("1.5"), date(2030, 1, 1), 2.5, b"a", (1, "b"), "acme", 7, True, None],
    ids=repr,
)  # fmt: skip
def test_a_default_that_is_given_has_the_limit_of_one_that_is_not(default: Any) -> None:
    """Else as many jobs again of that value would start."""
    app = Headrace()
    app.limit("each", Concurrency(1), by="account")

    def call(account: Any = default) -> None: ...

    call.__annotations__["account"] = type(default)
    task = app.task(name="call", limits=["each"])(call)
    with Kit(app):
        jobs = [task.enqueue(), task.enqueue(default), task.enqueue(account=default)]
        assert len({job.refresh().fields["lane"] for job in jobs}) == 1
