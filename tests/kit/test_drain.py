"""A drain runs what waits, in the caller's thread, and says what is left."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from headrace import Headrace, State, current_job
from headrace.context import CurrentJob
from headrace.errors import JobFailed, LifespanError, Snooze, SoftTimeLimit, WaitRefused
from headrace.model.job import Claim
from headrace.testing import DrainError, Kit
from headrace.testing.inline_runner import LimitGate, RunnerKilled
from headrace.testing.kit_store import connection
from tests.deadline import eventually
from tests.kit import shop


def test_nothing_runs_before_a_drain(headrace_app: Kit) -> None:
    job = shop.send.enqueue(7)
    assert job.state is State.READY
    assert shop.said == []


def test_a_drain_runs_jobs_and_their_handles_tell_it(headrace_app: Kit) -> None:
    jobs = [shop.send.enqueue(n) for n in (1, 2, 3)]
    drained = headrace_app.drain()
    assert (drained.starts, drained.ends, drained.left) == (3, {"succeeded": 3}, {})
    assert [job.result() for job in jobs] == ["welcome 1", "welcome 2", "welcome 3"]
    assert shop.around == ["tests.kit.shop.send"] * 3


def test_a_drain_lets_no_time_pass_unasked(headrace_app: Kit) -> None:
    shop.send.enqueue(1)
    headrace_app.drain()
    assert headrace_app.clock.offset < 1_000_000


def test_it_runs_in_the_thread_that_drains(headrace_app: Kit) -> None:
    threads: list[int] = []
    headrace_app.stub(shop.send, runs=lambda _: threads.append(threading.get_ident()) or "")
    shop.send.enqueue(1)
    headrace_app.drain()
    assert threads == [threading.get_ident()]


def test_a_server_that_has_settled_before_takes_the_first_word_of_a_job(headrace_app: Kit) -> None:
    with connection(headrace_app.url) as client:
        client.script_flush()
    shop.send.enqueue(1)
    headrace_app.drain()
    headrace_app.stub(shop.send, runs=lambda _: current_job().log("said") or "")
    job = shop.send.enqueue(2)
    headrace_app.drain()
    assert job.logs() == ["said"]


def test_it_runs_what_jobs_enqueue(headrace_app: Kit) -> None:
    shop.chain.enqueue(3)
    assert headrace_app.drain().starts == 4


def test_it_runs_jobs_that_follow_others(headrace_app: Kit) -> None:
    first, bad = shop.send.enqueue(1), shop.broken.enqueue()
    second = shop.send.options(after=first).enqueue(2)
    third = shop.send.options(after=[second, bad]).enqueue(3)
    last = shop.send.options(after=[third, bad], after_failure=True).enqueue(4)
    drained = headrace_app.drain(raises=False)
    assert drained.left == {}
    assert [job.state.value for job in (second, third, last)] == ["succeeded", "cancelled", "succeeded"]


def test_it_runs_coroutines_on_a_loop_of_its_own(headrace_app: Kit) -> None:
    job = shop.notify.enqueue(7)
    shop.achain.enqueue(2)
    assert headrace_app.drain().starts == 4
    assert job.result() == 7


async def test_adrain_runs_coroutines_on_the_loop_of_the_test(headrace_app: Kit) -> None:
    loops: list[object] = []
    job = await shop.notify.aenqueue(7)
    plain = await shop.send.aenqueue(8)
    headrace_app.stub(shop.achain, runs=lambda _: loops.append(asyncio.get_running_loop()) or 0)
    await shop.achain.aenqueue(1)
    assert (await headrace_app.adrain()).starts == 3
    assert (await job, await plain) == (7, "welcome 8")
    assert loops == [asyncio.get_running_loop()]


async def test_a_drain_on_a_running_loop_names_the_other_verb(headrace_app: Kit) -> None:
    with pytest.raises(WaitRefused, match="adrain"):
        headrace_app.drain()


def test_it_takes_one_queue_only_if_asked(headrace_app: Kit) -> None:
    shop.send.enqueue(1)
    job = shop.double.enqueue(2)
    assert headrace_app.drain(queue="low").left == {"ready": 1}
    assert job.result() == 4
    assert headrace_app.drain().left == {}


def test_it_raises_the_first_error_as_the_code_raised_it(headrace_app: Kit) -> None:
    job = shop.broken.enqueue()
    later = shop.send.options(priority=-1).enqueue(1)
    with pytest.raises(ValueError, match="broken on purpose") as caught:
        headrace_app.drain()
    assert any(entry.name == "broken" for entry in caught.traceback)
    assert (job.state, later.state) == (State.FAILED, State.READY)
    with pytest.raises(JobFailed, match="broken on purpose"):
        job.result()


def test_it_goes_on_after_an_error_if_told(headrace_app: Kit) -> None:
    shop.broken.enqueue()
    job = shop.send.enqueue(1)
    assert headrace_app.drain(raises=False).ends == {"failed": 1, "succeeded": 1}
    assert job.result() == "welcome 1"


def test_arguments_that_do_not_fit_fail_as_they_would_on_a_worker(headrace_app: Kit) -> None:
    # A producer that lacks the code, as programs that enqueue by name do.
    producer = Headrace(url=headrace_app.url, namespace=headrace_app.namespace)
    job = producer.by_name("tests.kit.shop.double").enqueue("two")
    with pytest.raises(JobFailed, match="expected int, got str"):
        headrace_app.drain()
    assert job.state is State.FAILED
    producer.close()


def test_an_unknown_task_is_parked(headrace_app: Kit) -> None:
    job = headrace_app.app.by_name("elsewhere.task").enqueue()
    assert headrace_app.drain().left == {"parked": 1}
    assert job.state is State.PARKED


def test_an_error_that_is_tried_again_is_raised_unless_retries_are_drained(headrace_app: Kit) -> None:
    job = shop.flaky.enqueue(2)
    with pytest.raises(ConnectionError, match="failure 1"):
        headrace_app.drain()
    assert job.state is State.SCHEDULED
    headrace_app.drain(raises=False)
    assert job.state is State.SCHEDULED
    headrace_app.clock.advance(minutes=2)
    with pytest.raises(ConnectionError, match="failure 2"):
        headrace_app.drain()


def test_retries_are_drained_by_letting_their_time_pass(headrace_app: Kit) -> None:
    other = shop.send.options(delay=3600).enqueue(1)
    job = shop.flaky.enqueue(3)
    before = headrace_app.clock.now
    assert headrace_app.drain(retries=True).ends == {"retry": 3, "succeeded": 1}
    assert job.result() == 4
    assert 420 <= (headrace_app.clock.now - before).total_seconds() < 440
    assert other.state is State.SCHEDULED


def test_the_last_error_is_raised_when_no_retry_is_left(headrace_app: Kit) -> None:
    job = shop.flaky.enqueue(9)
    with pytest.raises(ConnectionError, match="failure 4"):
        headrace_app.drain(retries=True)
    assert job.state is State.FAILED
    assert len(job.attempts()) == 4


def test_scheduled_jobs_are_drained_by_letting_their_time_pass(headrace_app: Kit) -> None:
    late, soon = (shop.send.options(delay=delay).enqueue(delay) for delay in (7200, 60))
    assert headrace_app.drain().left == {"scheduled": 2}
    assert headrace_app.drain(scheduled=True).left == {}
    assert shop.said == [(60, "welcome"), (7200, "welcome")]
    assert soon.state is late.state is State.SUCCEEDED


def test_a_job_that_snoozes_for_ever_meets_the_limit_which_says_what_is_left(headrace_app: Kit) -> None:
    shop.poll.enqueue()
    with pytest.raises(DrainError, match=r"limit of 20 starts.*1 (ready|scheduled).*shop\.poll"):
        headrace_app.drain(scheduled=True, limit=20)


def test_a_job_that_enqueues_for_ever_meets_the_limit(headrace_app: Kit) -> None:
    shop.chain.enqueue(30)
    with pytest.raises(DrainError, match=r"limit of 5 starts.*1 ready.*shop\.chain started 5 times"):
        headrace_app.drain(limit=5)
    assert headrace_app.drain(raises=False, limit=100).starts == 26


def test_the_limit_may_be_met_exactly(headrace_app: Kit) -> None:
    shop.chain.enqueue(4)
    assert headrace_app.drain(limit=5).starts == 5


def test_a_soft_limit_stops_code_that_waits(headrace_app: Kit) -> None:
    job = shop.slow.enqueue()
    with pytest.raises(SoftTimeLimit):
        headrace_app.drain()
    error = job.refresh().error
    assert error is not None
    assert error.type == "headrace.errors.SoftTimeLimit"


def test_a_hard_limit_stops_code_that_goes_on(headrace_app: Kit) -> None:
    job = shop.slow.enqueue(stubborn=True)
    with pytest.raises(JobFailed, match="HardTimeLimit"):
        headrace_app.drain()
    assert job.state is State.FAILED


def test_a_hard_limit_is_raised_once(headrace_app: Kit) -> None:
    """It was raised every 0.1 s until the gate closed: one that met the closing itself went on in the code of pytest."""
    gate = LimitGate(headrace_app.app.tasks["tests.kit.shop.slow"].plan(b""))
    gate.open(CurrentJob(Claim("0" * 21, 1, "default", 0, "slow", b""), lambda note: None))
    for error in (SoftTimeLimit, RunnerKilled):
        with pytest.raises(error):
            time.sleep(30)
    eventually(lambda: "limits of a drained job" not in {one.name for one in threading.enumerate()})
    gate.close()
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


async def test_a_soft_limit_stops_a_coroutine_and_a_thread(headrace_app: Kit) -> None:
    job = await shop.aslow.aenqueue()
    with pytest.raises(SoftTimeLimit):
        await headrace_app.adrain()
    assert await job.astate() is State.FAILED


def test_a_drain_within_a_job_is_refused(headrace_app: Kit) -> None:
    headrace_app.stub(shop.send, runs=lambda _: headrace_app.drain())
    shop.send.enqueue(1)
    with pytest.raises(DrainError, match="a drain is under way"):
        headrace_app.drain()


def test_what_is_no_error_of_a_job_ends_the_drain_in_any_case(headrace_app: Kit) -> None:
    headrace_app.stub(shop.send, runs=lambda _: pytest.fail("said by a stub"))
    shop.send.enqueue(1)
    with pytest.raises(pytest.fail.Exception, match="said by a stub"):
        headrace_app.drain(raises=False)


def test_a_paused_queue_waits(headrace_app: Kit) -> None:
    shop.double.enqueue(1)
    headrace_app.app.queues["low"].pause()
    assert headrace_app.drain().left == {"ready": 1}
    headrace_app.app.queues["low"].resume()
    assert headrace_app.drain().left == {}


def test_a_snooze_out_of_a_job_is_no_error(headrace_app: Kit) -> None:
    job = shop.poll.enqueue()
    assert headrace_app.drain().ends == {"snoozed": 1}
    assert job.state is State.SCHEDULED
    with pytest.raises(Snooze):
        headrace_app.stub(shop.poll, raises=Snooze(1)), shop.poll()


class Opened:
    """An application with lifespans, and what they were about."""

    def __init__(self) -> None:
        self.said: list[tuple[str, object]] = []
        self.app = app = Headrace(url="redis://127.0.0.1:1/0")

        @app.lifespan(kind="process")
        def database() -> Iterator[dict[str, int]]:
            self.said.append(("opened", threading.get_ident()))
            yield {"db": threading.get_ident()}
            self.said.append(("closed", threading.get_ident()))

        @app.lifespan(kind="async")
        async def pool() -> AsyncIterator[dict[str, object]]:
            async with asyncio.TaskGroup():
                yield {"loop": asyncio.get_running_loop()}
            self.said.append(("left", asyncio.get_running_loop()))

        @app.task(name="use")
        def use() -> bool:
            return bool(current_job().state["db"] == threading.get_ident())

        @app.task(name="ause")
        async def ause() -> bool:
            return bool(current_job().state["loop"] is asyncio.get_running_loop())

        self.use, self.ause = use, ause


async def test_lifespans_have_the_thread_and_the_loop_of_an_asynchronous_drain() -> None:
    opened = Opened()
    with Kit(opened.app) as kit:
        jobs = [await task.aenqueue() for task in (opened.use, opened.ause) * 2]
        assert (await kit.adrain()).ends == {"succeeded": 4}
        assert [await job for job in jobs] == [True] * 4
    assert [word for word, _ in opened.said] == ["opened", "left", "closed"]
    assert opened.said[0][1] == opened.said[2][1] == threading.get_ident()
    assert opened.said[1][1] is asyncio.get_running_loop()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_lifespan_that_cannot_be_entered_ends_the_drain_and_charges_no_job(is_async: bool) -> None:
    app = Headrace(url="redis://127.0.0.1:1/0")

    @app.lifespan
    def closed() -> Iterator[None]:
        raise ConnectionRefusedError("no database")
        yield

    @app.task(name="use")
    def use() -> None: ...

    @app.task(name="ause")
    async def ause() -> None: ...

    with Kit(app) as kit:
        job = (ause if is_async else use).enqueue()
        with pytest.raises(LifespanError, match="no database"):
            kit.drain(raises=False)
        record = job.refresh()
        assert (record.state, record.attempt) == (State.READY, 0)
