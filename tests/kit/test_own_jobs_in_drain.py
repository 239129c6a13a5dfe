"""A drain runs Headrace's own jobs, and its duties for them: hooks, alarms and bulk operations."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace import Headrace
from headrace.admin.event_log import EventRecord
from headrace.context import CurrentJob
from headrace.protocol.operations import JobFilter
from headrace.testing import Kit

told: list[tuple[str, str]] = []


@pytest.fixture
def kit() -> Iterator[Kit]:
    told.clear()
    app = Headrace(url="redis://127.0.0.1:1/0")

    @app.task(name="fail", retries=0)
    def fail() -> None:
        raise ValueError("on purpose")

    @app.task(name="work")
    def work() -> int:
        return 1

    @app.on("failed")
    def failed(events: list[EventRecord]) -> None:
        told.extend(("function", event.facts["job"]) for event in events)
        if len(told) < 4:
            # A job that fails within a hook is told by the next call.
            fail.enqueue()

    @app.on("failed")
    async def afailed(events: list[EventRecord]) -> None:
        await asyncio.sleep(0)
        told.extend(("coroutine", event.facts["job"]) for event in events)

    @app.on("alarm_raised")
    def raised(events: list[EventRecord]) -> None:
        told.extend(("alarm", event.facts["alarm"]) for event in events)

    app.alarm("nothing serves other", queue="other", ready=0, for_=0)

    @app.middleware
    @contextmanager
    def around(job: CurrentJob) -> Iterator[None]:
        assert job.task in ("fail", "work"), "it is not for hooks"
        yield

    with Kit(app) as kit:
        yield kit


def jobs(who: str) -> list[str]:
    return sorted(job for one, job in told if one == who)


def test_hooks_are_called_until_nothing_happens_any_more(kit: Kit) -> None:
    job = kit.app.by_name("fail").enqueue()
    drained = kit.drain(raises=False)
    assert job.id in jobs("function")
    assert jobs("function") == jobs("coroutine")
    assert len(jobs("function")) == drained.ends["failed"] == 3
    assert kit.drain().starts == 0


def test_what_happens_before_the_first_drain_is_told(kit: Kit) -> None:
    paused: list[str] = []
    kit.app.close()

    @kit.app.on("queue_paused")
    def on_pause(events: list[EventRecord]) -> None:
        paused.extend(event.facts["queue"] for event in events)

    with Kit(kit.app) as other:
        other.app.queues["low"].pause()
        other.drain()
    assert paused == ["low"]


def test_an_alarm_is_raised_and_told(kit: Kit) -> None:
    kit.app.by_name("work", queue="other").enqueue()
    kit.app.queues["other"].pause()
    for _ in range(3):
        kit.drain()
        kit.clock.advance(10)
    assert told == []
    kit.app.queues["other"].resume()
    kit.app.alarms.declared.clear()
    kit.app.alarm("waits", queue="third", ready=0, for_=0)
    kit.app.by_name("work", queue="third").enqueue()
    for _ in range(3):
        kit.drain(queue="default")
        kit.clock.advance(10)
    assert told == [("alarm", "waits")]
    kit.drain()


def test_a_bulk_operation_is_done(kit: Kit) -> None:
    kit.app.hooks.declared.clear()
    for _ in range(3):
        kit.app.by_name("fail").enqueue()
    kit.drain(raises=False)
    kit.app.bulk.start("delete", JobFilter("failed"), who="a test", by="program")
    drained = kit.drain()
    # Lists and counts of the application's jobs leave it out.
    assert (drained.starts, drained.ends) == (1, {})
    assert kit.app.jobs.count("failed") == 0


async def test_hooks_are_called_on_an_event_loop_too(kit: Kit) -> None:
    job = await kit.app.by_name("fail").aenqueue()
    await kit.adrain(raises=False)
    assert job.id in jobs("function")
    assert jobs("function") == jobs("coroutine")
