"""Limits in the kit: they count from the first enqueue of a test on, and open as its clock moves."""

from __future__ import annotations

import pytest

from headrace import Headrace, Rate
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
