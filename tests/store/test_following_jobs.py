"""``after=`` as programs see it, against real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Flow, Headrace, Job
from headrace.errors import JobNotFound, OptionsError
from headrace.model.ids import shard_of
from headrace.model.job import State
from tests.store.test_app import Worker


def noop(n: int = 0) -> int:
    return n


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url) as app:
        yield _add(app)


@pytest.fixture
def shards(url: str) -> Iterator[Headrace]:
    with Headrace(url, timeout=20, shards=3) as app:
        yield _add(app)


def _add(app: Headrace) -> Headrace:
    app.task(name="noop")(noop)
    app.task(name="limited")(noop)
    return app


def task(app: Headrace, **options: Any) -> Any:
    return app.tasks["noop"].options(**options)


def test_handles_ids_and_lists_name_the_jobs_that_a_job_follows(app: Headrace) -> None:
    one, two = task(app).enqueue(), task(app).enqueue()
    for after in (one, one.id, [one, two.id], (two, two)):
        job = task(app, after=after).enqueue()
        assert job.state is State.BLOCKED
        assert set(job.refresh().after) <= {one.id, two.id}
    assert app.jobs.count("blocked") == 4
    assert one.refresh().after == ()


def test_a_coroutine_enqueues_one_too(app: Headrace) -> None:
    async def both() -> Job[Any]:
        first = await task(app).aenqueue()
        return await task(app, after=first).aenqueue()

    assert asyncio.run(both()).state is State.BLOCKED


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"after": []}, "1 to 1,000"),
        ({"after": [f"{n:021}" for n in range(1001)]}, "1 to 1,000"),
        ({"after": "tuesday"}, "handles or ids"),
        ({"after": 7}, "handles or ids"),
        ({"after": "0" * 21, "delay": 5}, "after and delay"),
        ({"after": "0" * 21, "ordered": True, "key": "k"}, "after and ordered"),
        ({"after": "0" * 21, "unique": "name"}, "after and unique"),
        ({"after_failure": True}, "after="),
        ({"depends_on": "0" * 21}, "after="),
    ],
)
def test_what_cannot_be_is_refused_at_the_call(app: Headrace, options: dict[str, Any], word: str) -> None:
    with pytest.raises(OptionsError, match=word):
        task(app, **options)


def test_a_task_a_schedule_a_node_and_a_broadcast_follow_no_job(app: Headrace) -> None:
    job = task(app).enqueue()
    follower = task(app, after=job)
    with pytest.raises(OptionsError, match="options"):
        app.task(name="other", after=job)(noop)  # type: ignore[call-overload]
    with pytest.raises(OptionsError, match="after"):
        follower.broadcast()
    with pytest.raises(OptionsError, match="after"):
        app.every(60, follower, name="tick")

    def flow(flow: Flow) -> None:
        flow.run(follower)

    with pytest.raises(OptionsError, match="after"):
        app.workflow(name="flow")(flow).create()


def test_nodes_and_workflows_are_followed_by_none(app: Headrace) -> None:
    def flow(flow: Flow) -> None:
        flow.run("noop", name="n")

    run = app.workflow(name="flow")(flow).create()
    for other in (run, run.id, run.node("n")):
        with pytest.raises(OptionsError, match="nodes follow each other"):
            task(app, after=other)


def test_a_job_that_is_not_stored_is_named_and_nothing_is_stored(app: Headrace) -> None:
    gone = task(app).enqueue()
    gone.delete()
    follower = task(app, after=[task(app).enqueue(), gone])
    with pytest.raises(JobNotFound, match=gone.id):
        follower.enqueue()
    with pytest.raises(JobNotFound, match=gone.id):
        app.enqueue_many([task(app).job(), follower.job()])
    with pytest.raises(JobNotFound, match=gone.id):
        asyncio.run(follower.aenqueue())
    assert sum(app.overview().states.values()) == 1


def test_a_bulk_of_several_kinds_stores_them(app: Headrace) -> None:
    first = task(app).enqueue()
    jobs = [
        task(app, after=first).job(), task(app).job(), task(app, key="k", ordered=True).job(),
        task(app, unique="name").job(), task(app, after=[first], request_id="r").job(),
    ]  # fmt: skip
    assert app.enqueue_many(jobs) == 5
    assert [job.handle.state.value for job in jobs] == ["blocked", "ready", "ready", "ready", "blocked"]
    assert task(app, after=first, request_id="r").enqueue() == jobs[-1].handle


def test_jobs_of_one_bulk_may_follow_each_other(app: Headrace) -> None:
    jobs = [task(app).job()]
    for _ in range(1100):
        jobs.append(task(app, after=jobs[-1]).job())
    assert app.enqueue_many(jobs) == 1101
    assert [jobs[n].handle.state.value for n in (0, 1, 1100)] == ["ready", "blocked", "blocked"]


def test_no_envelope_has_one(app: Headrace) -> None:
    with pytest.raises(OptionsError, match="envelope"):
        task(app, after=task(app).enqueue()).job().pack()


def test_a_middleware_cannot_change_what_it_follows(app: Headrace) -> None:
    def send(act: Any) -> Any:
        raise AssertionError(act.jobs[0].change(after="0" * 21))

    app.enqueue_middleware(send)
    with pytest.raises(OptionsError, match="after cannot be changed"):
        task(app).enqueue()


def test_a_limited_job_goes_to_its_lane_when_its_time_has_come(app: Headrace) -> None:
    from headrace import Concurrency

    app.limit("one", Concurrency(1))
    app.task(name="slow", limits=["one"])(noop)
    worker = Worker(app)
    first = task(app).enqueue()
    follower = app.tasks["slow"].options(after=first).enqueue()
    for claim in worker.claim():
        worker.settle(claim, "succeeded", b"\xc0")
    app.workflows.expire_due()
    assert follower.state is State.READY


def test_of_several_shards_it_lives_where_those_are_that_it_follows(shards: Headrace) -> None:
    jobs = [task(shards).enqueue() for _ in range(40)]
    for job in jobs:
        assert shard_of(task(shards, after=job).enqueue().id) == shard_of(job.id)
    assert shards.enqueue_many(task(shards, after=job).job() for job in jobs) == 40
    assert {task(shards, after=job).job().handle.id[-2:] for job in jobs} == {job.id[-2:] for job in jobs}
    apart = {shard_of(job.id): job for job in jobs}
    with pytest.raises(OptionsError, match="several shards"):
        task(shards, after=list(apart.values())).enqueue()
    for options in ({"key": "k"}, {"request_id": "r"}):
        with pytest.raises(OptionsError, match=f"after= chooses one, and {next(iter(options))}"):
            task(shards, after=jobs[0], **options).enqueue()
