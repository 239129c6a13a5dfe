"""Unique jobs as programs see them, against real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace import Debounce, Every, Flow, Headrace, Job, Latest, Throttle, Unique
from headrace.errors import DuplicateJob, OptionsError, StateError
from tests.store.test_app import Worker


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url) as app:
        app.task(name="sync", unique=Unique(by="account"))(sync)
        yield app


def sync(account: str, full: bool = False) -> str:
    return f"{account} {full}"


def test_an_enqueue_of_a_name_that_is_held_gives_that_job(app: Headrace) -> None:
    task = app.tasks["sync"]
    first = task.enqueue("a")
    second, other = task.enqueue("a", True), task.enqueue("b")
    third = asyncio.run(_aenqueue(app))
    assert [first.fresh, second.fresh, other.fresh, third.fresh] == [True, False, True, False]
    assert second == first == third
    assert first.refresh().unique == app.tasks["sync"].job("a").name
    assert not app.job(first.id).fresh
    assert task.enqueue_json('["a"]') == first
    worker = Worker(app)
    for claim in worker.claim():
        worker.settle(claim, "succeeded", b"\xa1x")
    assert second.result(timeout=5) == "x"
    assert task.enqueue("a").fresh


async def _aenqueue(app: Headrace) -> Job[Any]:
    return await app.tasks["sync"].aenqueue("a")


def test_many_at_once_make_one_job(app: Headrace) -> None:
    task = app.tasks["sync"]
    with ThreadPoolExecutor(8) as pool:
        jobs = [call.result() for call in [pool.submit(task.enqueue, "a", n % 2 == 0) for n in range(64)]]
    assert sum(job.fresh for job in jobs) == 1
    assert len({job.id for job in jobs}) == 1


def test_enqueue_many_makes_one_job_of_a_name(app: Headrace) -> None:
    task = app.tasks["sync"]
    earlier = task.enqueue("0")
    jobs = [task.job(str(n % 7), n > 9) for n in range(2500)]
    assert app.enqueue_many(jobs) == 6
    assert [job.handle.fresh for job in jobs[:8]] == [False, True, True, True, True, True, True, False]
    assert jobs[0].handle == earlier
    assert jobs[2499].handle == jobs[2499 % 7].handle
    assert app.overview().states["ready"] == 7


def test_a_clash_that_raises_names_the_job_and_stores_nothing(app: Headrace) -> None:
    task = app.tasks["sync"].options(unique=Unique(by="account", clash="raise"))
    first = task.enqueue("a")
    with pytest.raises(DuplicateJob, match=f"job {first.id} has the name .* nothing of this call was stored") as caught:
        task.enqueue("a")
    assert caught.value.id == first.id
    jobs = [task.job("b"), task.job("a")]
    with pytest.raises(DuplicateJob) as caught:
        app.enqueue_many(jobs)
    assert caught.value.job == jobs[1].id
    assert app.overview().states["ready"] == 1
    assert app.enqueue_many(jobs[:1]) == 1


def test_an_envelope_carries_its_name(app: Headrace, url: str) -> None:
    packed = app.tasks["sync"].job("a").pack()
    with Headrace(url) as other:
        (receipt,) = other.enqueue_packed([packed])
        assert receipt.stored
        (again,) = other.enqueue_packed([packed])
        assert not again.stored
    clash = app.tasks["sync"].enqueue("a")
    assert (clash.id, clash.fresh) == (receipt.job_id, False)
    (merged,) = app.enqueue_packed([app.tasks["sync"].job("a", True).pack()])
    assert merged[1:] == (False, clash.id)


def test_a_retry_by_hand_needs_the_name(app: Headrace) -> None:
    task = app.tasks["sync"]
    failed = task.enqueue("a")
    worker = Worker(app)
    (claim,) = worker.claim()
    worker.settle(claim, "failed", b"{}")
    other = task.enqueue("a")
    with pytest.raises(StateError, match=f"is unique, and {other.id} has its name"):
        failed.retry()
    other.cancel()
    failed.retry()
    assert not task.enqueue("a").fresh


def test_a_node_cannot_be_unique(app: Headrace) -> None:
    task = app.tasks["sync"]

    @app.workflow
    def refused(flow: Flow) -> None:
        flow.run(task, "a")

    @app.workflow
    def taken(flow: Flow) -> None:
        flow.run(task.options(unique=False), "a")

    with pytest.raises(OptionsError, match=r"a node cannot be unique: .*task\.options\(unique=False\)"):
        refused.create()
    taken.create()


def test_a_schedule_of_a_unique_task_has_its_name(app: Headrace) -> None:
    task = app.tasks["sync"]
    schedule = app.schedules.put("hourly", Every(3600), task.job("a"))
    first = task.enqueue("a")
    assert schedule.run() is None
    first.cancel()
    assert schedule.run() is not None
    assert not task.enqueue("a").fresh


def test_the_newest_arguments_follow_the_job_that_runs(app: Headrace) -> None:
    task = app.tasks["sync"].options(unique=Latest(by="account"))
    first = task.enqueue("a")
    worker = Worker(app)
    (running,) = worker.claim()
    second, third = task.enqueue("a"), task.enqueue("a", True)
    assert [first.fresh, second.fresh, third.fresh] == [True, True, False]
    assert third == second
    assert second.refresh().args == ("a", True)
    assert app.overview().states["blocked"] == 1
    worker.settle(running, "succeeded", b"\xc0")
    (last,) = worker.claim()
    assert last.id == second.id
    worker.settle(last, "succeeded", b"\xa1x")
    assert third.result(timeout=5) == "x"


def test_a_debounced_job_is_ready_when_its_name_is_quiet(app: Headrace) -> None:
    task = app.tasks["sync"].options(unique=Debounce(30, most=40, by="account"))
    jobs = [task.job("a", n == 4) for n in range(5)]
    assert app.enqueue_many(jobs) == 1
    record = jobs[0].handle.refresh()
    assert (record.state, record.args) == ("scheduled", ("a", True))
    assert record.due is not None
    assert 29 < (record.due - record.created).total_seconds() < 40


def test_a_throttled_job_has_one_at_the_end_of_its_window(app: Headrace) -> None:
    once = app.tasks["sync"].options(unique=Throttle(60, text="once"))
    assert [once.enqueue(name).fresh for name in "abc"] == [True, False, False]
    task = app.tasks["sync"].options(unique=Throttle(60, trailing=True, text="twice"))
    first, second, third = (task.enqueue(name) for name in "abc")
    assert [first.fresh, second.fresh, third.fresh] == [True, True, False]
    assert (first.state, second.state) == ("ready", "scheduled")
    assert third.refresh().args == ("c",)
