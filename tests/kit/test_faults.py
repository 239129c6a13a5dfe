"""Faults on demand, a clock that moves, and stubs: what becomes of jobs is what would on a worker."""

from __future__ import annotations

import datetime as dt
from contextlib import nullcontext
from unittest.mock import Mock

import pytest

from headrace import Every, State
from headrace.errors import JobQuarantined, OptionsError, StoreFull, StoreUnavailable
from headrace.model.ids import run_id_of
from headrace.testing import DrainError, Kit
from tests.kit import shop


@pytest.mark.parametrize(("at", "runs"), [("start", 1), ("end", 2)])
def test_a_crash_costs_the_start_and_the_job_runs_again(headrace_app: Kit, at: str, runs: int) -> None:
    headrace_app.crash(shop.send, at=at)  # type: ignore[arg-type]
    other, job = shop.double.enqueue(1), shop.send.enqueue(1)
    assert headrace_app.drain().ends == {"crashed": 1, "succeeded": 2}
    assert len(shop.said) == runs
    assert (job.refresh().crashes, other.refresh().crashes) == (1, 0)


def test_a_job_that_crashes_too_often_is_quarantined(headrace_app: Kit) -> None:
    headrace_app.crash(times=2)
    job = shop.send.enqueue(1)
    assert headrace_app.drain().ends == {"crashed": 2}
    with pytest.raises(JobQuarantined, match="signal 9"):
        job.result()


def test_a_crash_amid_the_code(headrace_app: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shop, "said", Mock(append=Once(headrace_app.crash)))
    jobs = [shop.send.enqueue(1), shop.notify.enqueue(2)]
    assert headrace_app.drain().ends == {"crashed": 1, "succeeded": 2}
    assert [job.state for job in jobs] == [State.SUCCEEDED] * 2


class Once:
    """Calls something the first time."""

    def __init__(self, function: object) -> None:
        self._function = function

    def __call__(self, *args: object) -> None:
        function, self._function = self._function, None
        if callable(function):
            function()


def test_a_worker_that_dies_keeps_its_job_until_its_lease_is_over(headrace_app: Kit) -> None:
    job = shop.send.enqueue(1)
    headrace_app.crash(worker=True)
    headrace_app.drain()
    assert job.state is State.RUNNING
    assert headrace_app.drain().starts == 0
    headrace_app.clock.advance(seconds=30)
    assert headrace_app.drain().ends == {"succeeded": 1}
    assert job.refresh().crashes == 1


def test_a_worker_may_stay_dead_to_the_end_of_the_test(headrace_app: Kit) -> None:
    shop.send.enqueue(1)
    headrace_app.crash(worker=True)
    headrace_app.drain()


@pytest.mark.parametrize(
    ("reason", "state"), [("timeout", State.FAILED), ("cancel", State.CANCELLED), ("shutdown", State.READY)]
)
def test_a_job_is_stopped_at_a_line_of_its_code(
    headrace_app: Kit, monkeypatch: pytest.MonkeyPatch, reason: str, state: State
) -> None:
    jobs = [shop.send.enqueue(1), shop.notify.enqueue(1)]
    monkeypatch.setattr(shop, "said", Mock(append=lambda _: headrace_app.interrupt(reason)))  # type: ignore[arg-type]
    # One that a shutdown stops goes back to its queue, uncharged, and is claimed again.
    again = pytest.raises(DrainError, match="limit of 2") if reason == "shutdown" else nullcontext()
    with again:
        headrace_app.drain(raises=False, limit=2)
    assert [job.state for job in jobs] == [state, state]


def test_a_call_that_fails_never_reaches_the_server(headrace_app: Kit) -> None:
    headrace_app.fail()
    headrace_app.fail(ConnectionError("mine"))
    with pytest.raises(StoreUnavailable):
        shop.send.enqueue(1)
    with pytest.raises(ConnectionError, match="mine"):
        shop.send.enqueue(1)
    assert shop.app.overview().states["ready"] == 0


async def test_faults_meet_asynchronous_calls(headrace_app: Kit) -> None:
    headrace_app.lose_reply()
    await shop.send.aenqueue(1)
    headrace_app.lose_reply(give_up=True)
    with pytest.raises(StoreUnavailable, match="may or may not"):
        await shop.send.aenqueue(2)
    headrace_app.fail()
    with pytest.raises(StoreUnavailable, match="unreachable"):
        await shop.send.aenqueue(3)
    assert (await headrace_app.adrain()).starts == 2


def test_a_fault_that_meets_nothing_fails_the_test() -> None:
    with pytest.raises(AssertionError) as failed, Kit(shop.app) as kit:
        kit.crash(shop.send)
        kit.lose_reply()
        kit.fail()
    for text in ("a crash of tests.kit.shop.send, which nothing met", "a lost reply", "a failure of the store"):
        assert text in str(failed.value)


def test_time_makes_due_what_was_scheduled(headrace_app: Kit) -> None:
    job = shop.send.options(delay=90_000).enqueue(1)
    headrace_app.clock.advance(hours=24)
    assert (headrace_app.drain().starts, job.state) == (0, State.SCHEDULED)
    headrace_app.clock.advance(dt.timedelta(hours=2))
    assert job.state is State.READY
    assert headrace_app.drain().starts == 1


def test_time_lets_jobs_expire_and_retentions_end(headrace_app: Kit) -> None:
    late = shop.send.options(expires=60).enqueue(1)
    job = shop.send.enqueue(2)
    run = shop.sums.create([1])
    run.start()
    headrace_app.clock.advance(minutes=2)
    assert headrace_app.drain().ends == {"cancelled": 1, "succeeded": 3}
    assert late.state is State.CANCELLED
    headrace_app.clock.advance(hours=2)
    with pytest.raises(LookupError):
        assert job.state
    headrace_app.clock.advance(days=8)
    with pytest.raises(LookupError):
        assert run.state


def test_time_ends_request_ids_and_cached_values(headrace_app: Kit) -> None:
    mail = shop.send.options(request_id="one")
    first = mail.enqueue(1)
    shop.app.cache.set("name", 1, ttl=3600)
    headrace_app.clock.advance(minutes=30)
    assert mail.enqueue(1) == first
    headrace_app.clock.advance(hours=25)
    assert mail.enqueue(1) != first
    shop.app.cache.follow()
    assert shop.app.cache.get("name") is None


def test_time_ends_pauses(headrace_app: Kit) -> None:
    shop.double.enqueue(1)
    shop.app.queues["low"].pause(60)
    assert headrace_app.drain().starts == 0
    headrace_app.clock.advance(minutes=2)
    assert headrace_app.drain().starts == 1


def test_time_that_passes_within_a_job_ends_its_lease_and_nothing_is_lost(headrace_app: Kit) -> None:
    headrace_app.stub(shop.send, runs=lambda _: headrace_app.clock.advance(hours=1) or "")
    jobs = [shop.send.enqueue(n) for n in range(3)]
    assert headrace_app.drain().ends == {"succeeded": 3}
    assert [job.state for job in jobs] == [State.SUCCEEDED] * 3


def test_time_does_not_go_back(headrace_app: Kit) -> None:
    with pytest.raises(OptionsError):
        headrace_app.clock.advance(-1)
    before = headrace_app.clock.now
    headrace_app.clock.advance(minutes=1, seconds=30)
    assert 90 <= (headrace_app.clock.now - before).total_seconds() < 100


def test_a_stub_stands_in_and_its_arguments_and_result_are_checked(headrace_app: Kit) -> None:
    stub = headrace_app.stub(shop.double, returns=7)
    job = shop.double.enqueue(3)
    headrace_app.drain()
    assert (job.result(), stub.calls) == (7, [((3,), {})])
    with headrace_app.stub(shop.double, returns="seven"):
        wrong = shop.double.enqueue(1)
        headrace_app.drain(raises=False)
    assert wrong.state is State.FAILED
    stub.remove()
    assert shop.double(3) == 6


async def test_a_stub_of_a_coroutine_may_raise_so_many_times(headrace_app: Kit) -> None:
    headrace_app.stub(shop.notify, raises=TimeoutError("away"), times=2)
    job = await shop.notify.options(retries=2).aenqueue(5)
    drained = await headrace_app.adrain(retries=True)
    assert drained.ends == {"retry": 2, "succeeded": 1}
    assert await job == 5


def test_stubs_end_with_the_test() -> None:
    with Kit(shop.app) as kit:
        kit.stub(shop.double, returns=1)
        kit.stub(shop.double, returns=2)
        assert shop.double(4) == 2
    assert shop.double(4) == 8


@pytest.mark.parametrize("error", [StoreFull("its memory is full"), StoreUnavailable("it is away")])
def test_a_tick_makes_its_workflow_when_the_server_can_take_it(headrace_app: Kit, error: Exception) -> None:
    schedule = shop.app.schedules.put("nightly", Every(3600), shop.sums, [1, 2], overlap="allow_all")
    job = schedule.run()
    assert job is not None
    headrace_app.fail(error, times=3)
    headrace_app.drain(retries=True)
    assert [one.outcome for one in job.attempts()] == ["retry", "retry", "retry", "succeeded"]
    assert shop.app.workflows.get(run_id_of(job.id)).state == "succeeded"
    assert shop.app.workflows.count() == 1


def test_a_workflow_that_fails_at_each_tick_fails_for_one_cause(headrace_app: Kit) -> None:
    schedule = shop.app.schedules.put("nightly", Every(3600), shop.sums, [1, 2])
    headrace_app.stub(shop.double, raises=OSError("no disk"))
    for _ in range(2):
        schedule.run()
        headrace_app.drain(scheduled=True, raises=False)
    tasks = [event.facts["task"] for event in shop.app.events.page(["cause_new"])]
    assert sorted(tasks) == ["tests.kit.shop.double", "workflow:tests.kit.shop.sums"]
