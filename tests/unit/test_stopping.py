"""The event that a stop sets: waited for in threads and coroutines, set by anything, a signal handler included."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from types import FrameType

import pytest

from headrace.context import CurrentJob
from headrace.errors import OptionsError
from headrace.model.job import Claim


def current() -> CurrentJob:
    return CurrentJob(Claim("id", 7, "default", 0, "tasks.mean", b""), lambda _: None)


def test_it_is_set_once_a_stop_begins_whoever_asked_for_it_first() -> None:
    early, late = current(), current()
    stopping = early.stopping
    assert not stopping.is_set()
    assert stopping.wait(0) is False
    assert stopping.wait(0.01) is False
    for job in (early, late):
        job.begin_stop("shutdown")
        assert job.stopping.is_set()
        assert job.stopping.wait() is True
    assert early.stopping is stopping
    assert repr(stopping) == "<Stopping set>"
    with pytest.raises(OptionsError):
        stopping.wait(-1)


def test_the_reason_is_the_last_that_raised() -> None:
    job = current()
    job.begin_stop("shutdown")
    assert (job.stopped_by, job.cancelled) == ("shutdown", False)
    job.begin_stop("cancel")
    assert (job.stopped_by, job.cancelled) == ("cancel", True)
    job.begin_stop("shutdown")
    assert job.stopped_by == "cancel"


def test_every_waiter_in_threads_and_coroutines_is_woken() -> None:
    job, woken = current(), list[str]()

    def wait() -> None:
        job.stopping.wait()
        woken.append("thread")

    async def awaits() -> None:
        await job.stopping
        woken.append("coroutine")

    async def both() -> None:
        await asyncio.gather(awaits(), awaits())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.sleep(5)), 0.01)

    async def given_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(job.stopping, 0.01)

    asyncio.run(given_up())
    threads = [threading.Thread(target=wait) for _ in range(5)]
    threads.append(threading.Thread(target=lambda: asyncio.run(both())))
    for thread in threads:
        thread.start()
    job.begin_stop("shutdown")
    for thread in threads:
        thread.join(20)
    assert sorted(woken) == ["coroutine"] * 2 + ["thread"] * 5
    asyncio.run(awaits())


def test_a_signal_handler_may_set_it_amid_a_wait() -> None:
    """With threading.Event the handler would wait for a lock that the interrupted code holds."""
    jobs = [current()]

    def handle(number: int, frame: FrameType | None) -> None:
        jobs[-1].begin_stop("shutdown")

    before = signal.signal(signal.SIGALRM, handle)
    try:
        for turn in range(300):
            jobs.append(current())
            signal.setitimer(signal.ITIMER_REAL, 0.0002 + 0.00001 * (turn % 30))
            end = time.monotonic() + 20
            while not jobs[-1].stopping.wait(0.00001):
                assert time.monotonic() < end
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
