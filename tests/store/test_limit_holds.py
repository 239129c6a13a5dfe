"""Programs that hold a limit outside of jobs, from sync and async code."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import Concurrency, Headrace, Rate
from headrace.errors import NotFound, OptionsError, WaitTimeout
from tests.deadline import eventually
from tests.servers import connect

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
        with pytest.raises(WaitTimeout, match=r"limit one did not open within 0 s"), one.hold(wait=0):
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
            with pytest.raises(WaitTimeout):
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
    client: Any = connect(app.client.url())
    ((_, score),) = client.zrange(app.client.keys("timers"), 0, 0, withscores=True)
    client.close()
    return float(score)


def test_a_program_that_lost_its_lease_is_told(app: Headrace, caplog: pytest.LogCaptureFixture) -> None:
    client: Any = connect(app.client.url())
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
        with pytest.raises(WaitTimeout), account.hold("acme", wait=0):
            pass


def test_what_cannot_be_held_is_refused(app: Headrace) -> None:
    with pytest.raises(OptionsError, match=r"goes by a value: hold\(value\)"), app.limits["account"].hold():
        pass
    with pytest.raises(OptionsError, match="goes by no value"), app.limits["one"].hold("x"):
        pass
    with pytest.raises(NotFound, match="neither the store nor this program"), app.limits["other"].hold():
        pass
    mine = app.limits["one"].hold()
    with mine:
        pass
    with pytest.raises(OptionsError, match="was used already"), mine:
        pass


def late(app: Headrace, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Have something happen in a thread when the server has given the limit, and before the program hears of it."""
    run = app.client.run

    def slow(call: Any) -> Any:
        answer = run(call)
        if getattr(answer, "word", "") == "held":
            happens()
        return answer

    monkeypatch.setattr(app.client, "run", slow)


def test_an_interrupt_as_the_limit_is_given_gives_it_back(app: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    late(app, monkeypatch, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), app.limits["one"].hold():
        pass
    assert held(app, "one") == 0


def test_a_hold_that_nothing_can_renew_is_given_back(app: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    late(app, monkeypatch, lambda: monkeypatch.setattr(threading.Thread, "start", none))
    with pytest.raises(RuntimeError, match="can't start"), app.limits["one"].hold():
        pass
    assert held(app, "one") == 0


def test_a_cancellation_as_the_limit_is_given_gives_it_back(app: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        one, arun, given = app.limits["one"], app.client.arun, asyncio.Event()

        async def slow(call: Any) -> Any:
            answer = await arun(call)
            if getattr(answer, "word", "") == "held":
                given.set()
                await asyncio.sleep(60)
            return answer

        async def hold() -> None:
            async with one.hold():
                pass

        monkeypatch.setattr(app.client, "arun", slow)
        holds = asyncio.create_task(hold())
        await given.wait()
        holds.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holds
        assert (await one.astate()).held == 0
        await app.client.aclose()

    asyncio.run(main())
