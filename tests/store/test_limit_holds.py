"""Programs that hold a limit outside of jobs, from sync and async code."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from headrace import Concurrency, Headrace, Rate
from headrace.errors import LimitTimeout, OptionsError, UnknownLimit
from tests.deadline import eventually

# Seconds; it is renewed three times as often. A machine that stands still for less costs no hold.
LEASE = 3


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url, timeout=20, lease=LEASE) as app:
        app.limit("one", Concurrency(1))
        app.limit("account", Concurrency(1), by="account")
        app.limit("fast", Rate(20, per=1))
        yield app


def held(app: Headrace, name: str, value: object = None) -> Any:
    return app.limits[name].state(value).held


def test_a_block_holds_the_limit_until_it_ends(app: Headrace) -> None:
    one = app.limits["one"]
    with one.hold():
        assert held(app, "one") == 1
        with pytest.raises(LimitTimeout, match=r"limit one did not open within 0 s"), one.hold(wait=0):
            pass
    assert held(app, "one") == 0
    with pytest.raises(ZeroDivisionError), one.hold():
        raise ZeroDivisionError
    assert held(app, "one") == 0


def test_a_coroutine_holds_it_alike(app: Headrace) -> None:
    async def main() -> None:
        one = app.limits["one"]
        async with one.hold() as mine:
            first = deadline(app)
            await asyncio.to_thread(eventually, lambda: deadline(app) > first)
            assert not mine.lost
            with pytest.raises(LimitTimeout):
                async with one.hold(wait=0.01):
                    pass
        async with one.hold(wait=5):
            assert (await one.astate()).held == 1
        assert (await one.astate()).held == 0
        await app.client.aclose()

    asyncio.run(main())


def test_a_lease_is_renewed_while_the_block_runs(app: Headrace) -> None:
    with app.limits["one"].hold() as mine:
        first = deadline(app)
        eventually(lambda: deadline(app) > first)
        assert not mine.lost


def deadline(app: Headrace) -> float:
    client: Any = redis.Redis.from_url(app.client.url())
    ((_, score),) = client.zrange(app.client.keys("timers"), 0, 0, withscores=True)
    client.close()
    return float(score)


def test_a_program_that_lost_its_lease_is_told(app: Headrace, caplog: pytest.LogCaptureFixture) -> None:
    client: Any = redis.Redis.from_url(app.client.url())
    with caplog.at_level(logging.WARNING, "headrace"), app.limits["one"].hold() as mine:
        # As if the server had not heard of it for so long.
        client.delete(app.client.keys("timers"), app.client.keys("gate:one:"), app.client.keys("scheduled"))
        eventually(lambda: mine.lost)
    assert "is not held any more" in caplog.text
    client.close()


def test_it_waits_for_the_time_when_a_rate_opens(app: Headrace) -> None:
    for _ in range(4):
        with app.limits["fast"].hold(wait=10):
            pass
    assert held(app, "fast") == 0


def test_values_are_held_apart(app: Headrace) -> None:
    account = app.limits["account"]
    with account.hold("acme"), account.hold("other"):
        assert held(app, "account", "acme") == 1
        with pytest.raises(LimitTimeout), account.hold("acme", wait=0):
            pass


def test_what_cannot_be_held_is_refused(app: Headrace) -> None:
    with pytest.raises(OptionsError, match=r"goes by a value: hold\(value\)"), app.limits["account"].hold():
        pass
    with pytest.raises(OptionsError, match="goes by no value"), app.limits["one"].hold("x"):
        pass
    with pytest.raises(UnknownLimit, match="neither the store nor this program"), app.limits["other"].hold():
        pass
    mine = app.limits["one"].hold()
    with mine:
        pass
    with pytest.raises(OptionsError, match="was used already"), mine:
        pass
