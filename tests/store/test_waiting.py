"""Waits of many callers for many jobs: over one connection, through kills, restarts, forks and closes."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from headrace import Headrace, Job
from headrace.errors import (
    ArgumentError,
    ClosedError,
    JobFailed,
    JobNotFound,
    OptionsError,
    ServerError,
    StoreUnavailable,
    WaitRefused,
    WaitTimeout,
)
from headrace.model import codec
from headrace.model.ids import shard_of
from headrace.model.job import JobError, error_json
from headrace.protocol.keys import Keys
from headrace.store import end_listener
from tests import deadline
from tests.proxy import Proxy
from tests.servers import Server
from tests.store.flows import Dispatcher, chain, create
from tests.store.test_app import Worker
from tests.store.twin import started

MISSING = "0" * 21


def double(number: int) -> Any:
    return 2 * number


def made(url: str, **settings: Any) -> Headrace:
    app = Headrace(url, **{"timeout": 20, **settings})
    app.task(name="double")(double)
    return app


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with made(url) as app:
        yield app


@pytest.fixture
def worker(app: Headrace) -> Worker:
    return Worker(app)


def enqueue(app: Headrace, count: int) -> list[Job[Any]]:
    drafts = [app.tasks["double"].job(n) for n in range(count)]
    app.enqueue_many(drafts)
    return [draft.handle for draft in drafts]


def work(app: Headrace, worker: Worker, count: int) -> None:
    """End the next jobs; each with what its function would have returned."""
    while count:
        for claim in worker.claim(count):
            ((number,), _) = codec.decode(claim.args)
            worker.settle(claim, "succeeded", app.tasks["double"].pack_result(2 * number))
            count -= 1


@pytest.fixture(autouse=True)
def alone(client: redis.Redis) -> None:
    """End the connections of earlier tests whose garbage is not collected yet: tests here count them."""
    for one in ours(client):
        client.client_kill_filter(_id=one["id"])


def ours(client: redis.Redis) -> list[dict[str, str]]:
    return [one for one in client.client_list() if one["name"] == "headrace"]


def keys_of(job: Job[Any]) -> Keys:
    return Keys("hr", shard_of(job.id))


def waits_of(app: Headrace) -> list[Any]:
    """What the listeners wait for, one a shard."""
    ends: Any = app.client.ends
    return [wait for one in getattr(ends, "_parts", [ends]) for wait in one._waits.values()]


def listened(client: redis.Redis, jobs: list[Job[Any]]) -> int:
    return sum(count for _, count in client.pubsub_numsub(*(keys_of(job).done(job.id) for job in jobs)))


def listening() -> bool:
    return any(one.name == "headrace-ends" for one in threading.enumerate())


def test_a_wait_that_is_held_up_until_its_time_is_over_ends(app: Headrace) -> None:
    job = app.tasks["double"].enqueue(1)
    with deadline.held_up(0.5), pytest.raises(WaitTimeout):
        job.result(timeout=0.3)


# One connection.


def test_hundreds_of_waiters_share_one_connection(
    app: Headrace, worker: Worker, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    jobs = enqueue(app, 300)
    results: dict[int, Any] = {}

    def thread(number: int) -> None:
        results[number] = jobs[number].result(timeout=100)

    async def tasks() -> None:
        found = await asyncio.gather(*(job.aresult(timeout=100) for job in jobs[150:]))
        results.update(zip(range(150, 300), found, strict=True))

    threads = [started(lambda n=n: thread(n)) for n in range(150)] + [started(lambda: asyncio.run(tasks()))]
    eventually(lambda: listened(client, jobs) == 300, timeout=60)
    # One for commands, of whichever store sent the first look; and the listener's.
    assert len(ours(client)) <= 3
    assert sum(one["sub"] != "0" for one in ours(client)) == 1
    work(app, worker, 300)
    for one in threads:
        one.join(60)
    assert results == {n: 2 * n for n in range(300)}
    assert len(ours(client)) <= 3


def test_threads_that_wait_use_two_connections(
    app: Headrace, worker: Worker, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    jobs = enqueue(app, 300)
    results: list[Any] = []
    threads = [started(lambda job=job: results.append(job.result(100))) for job in jobs]
    eventually(lambda: listened(client, jobs) == 300, timeout=60)
    assert len(ours(client)) == 2
    work(app, worker, 300)
    for one in threads:
        one.join(60)
    assert (sum(results), len(ours(client))) == (2 * sum(range(300)), 2)


async def test_tasks_that_wait_use_two_connections(
    url: str, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    async with made(url) as app:
        jobs = [await app.tasks["double"].aenqueue(n) for n in range(300)]
        waits = [asyncio.ensure_future(job.aresult(100)) for job in jobs]
        await asyncio.to_thread(eventually, lambda: listened(client, jobs) == 300, timeout=60)
        assert len(ours(client)) == 2
        with made(url) as other:
            await asyncio.to_thread(work, other, Worker(other), 300)
        assert await asyncio.gather(*waits) == [2 * n for n in range(300)]
        # The server notices a moment later that the other application's connection was closed.
        await asyncio.to_thread(eventually, lambda: len(ours(client)) == 2)


def test_a_listener_leaves_when_nothing_is_waited_for(
    app: Headrace, worker: Worker, client: redis.Redis, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_listener, "IDLE", 0.05)
    for _ in range(2):
        (job,) = enqueue(app, 1)
        with pytest.raises(WaitTimeout):
            job.result(timeout=0.01)
        eventually(lambda: not listening())
        eventually(lambda: len(ours(client)) == 1)


def test_a_server_without_resp3_gets_a_second_connection(
    server_name: str, new_server: Callable[..., Server], eventually: Callable[..., Any]
) -> None:
    server = new_server(server_name, config={"rename-command HELLO": ""})
    client = server.client()
    with made(server.url) as app:
        jobs, results = enqueue(app, 3), list[Any]()
        threads = [started(lambda job=job: results.append(job.result(60))) for job in jobs]
        eventually(lambda: listened(client, jobs) == 3)
        assert len(ours(client)) == 3
        work(app, Worker(app), 3)
        for one in threads:
            one.join(30)
        assert sorted(results) == [0, 2, 4]


def test_a_result_too_large_for_the_listener_arrives(app: Headrace, worker: Worker) -> None:
    jobs = enqueue(app, 2)
    text = "é" * 100_000

    def end() -> None:
        one, two = worker.claim()
        worker.settle(one, "succeeded", app.tasks["double"].pack_result(text))
        error = JobError(type="ValueError", message="x" * 100_000)
        worker.settle(two, "failed", error_json(error))

    thread = started(end)
    assert jobs[0].result(60) == text
    with pytest.raises(JobFailed, match=r"x{90000}"):
        jobs[1].result(60)
    thread.join(30)


def test_a_record_that_cannot_be_read_harms_no_other_wait(
    app: Headrace, worker: Worker, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    good, bad = enqueue(app, 2)
    errors: list[BaseException] = []

    def wait_badly() -> None:
        try:
            bad.result(60)
        except ServerError as error:
            errors.append(error)

    thread = started(lambda: good.result(60))
    eventually(lambda: listened(client, [good]) == 1)
    kept = client.dump(keys_of(bad).job(bad.id))
    client.delete(keys_of(bad).job(bad.id))
    client.set(keys_of(bad).job(bad.id), "of another type")
    broken = started(wait_badly)
    broken.join(30)
    assert "WRONGTYPE" in str(errors[0])
    client.restore(keys_of(bad).job(bad.id), 0, kept, replace=True)
    assert thread.is_alive()
    work(app, worker, 2)
    thread.join(30)


# What goes away meanwhile.


def test_waits_survive_the_loss_of_their_connections(
    app: Headrace, worker: Worker, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    jobs = enqueue(app, 200)
    results: list[Any] = []
    threads = [started(lambda job=job: results.append(job.result(100))) for job in jobs[:100]]

    async def tasks() -> None:
        results.extend(await asyncio.gather(*(job.aresult(100) for job in jobs[100:])))

    threads.append(started(lambda: asyncio.run(tasks())))
    for done in range(0, 200, 50):
        eventually(lambda done=done: listened(client, jobs) == 200 - done, timeout=60)
        for one in ours(client):
            client.client_kill_filter(_id=one["id"])
        # Ends that nobody heard of: the listener is not back yet, or just is.
        work(app, worker, 50)
    for one in threads:
        one.join(60)
    assert sorted(results) == [2 * n for n in range(200)]


def test_waits_survive_a_restart(
    server_name: str, new_server: Callable[..., Server], eventually: Callable[..., Any]
) -> None:
    server = new_server(server_name, append_only=True)
    with made(server.url, timeout=60) as app:
        jobs, results = enqueue(app, 50), list[Any]()
        threads = [started(lambda job=job: results.append(job.result(100))) for job in jobs]
        eventually(lambda: listened(server.client(), jobs) == 50)
        server.kill()
        eventually(lambda: app.client.ends.fault)
        server.start()
        work(app, Worker(app), 50)
        for one in threads:
            one.join(60)
        assert sorted(results) == [2 * n for n in range(50)]


@pytest.mark.any_server
def test_waits_end_when_the_server_stays_away(
    server_name: str, new_server: Callable[..., Server], eventually: Callable[..., Any]
) -> None:
    server = new_server(server_name)
    with made(server.url, timeout=2) as app:
        (job,), errors = enqueue(app, 1), list[BaseException]()

        def thread() -> None:
            with pytest.raises(StoreUnavailable, match="may be repeated") as caught:
                job.result()
            errors.append(caught.value)

        async def tasks() -> None:
            for wait in (job.aresult(), app.await_([job])):
                with pytest.raises(StoreUnavailable) as caught:
                    await wait
                errors.append(caught.value)

        threads = [started(thread), started(thread), started(lambda: asyncio.run(tasks()))]
        eventually(lambda: listened(server.client(), [job]) == 1)
        server.stop()
        for one in threads:
            one.join(60)
        assert len({id(error) for error in errors}) == 4, "each one an error of its own"


@pytest.mark.any_server
def test_a_wait_ends_in_its_time_while_the_server_is_away(
    server_name: str, new_server: Callable[..., Server], eventually: Callable[..., Any]
) -> None:
    server = new_server(server_name)
    with made(server.url, timeout=600) as app:
        (job,), errors = enqueue(app, 1), list[str]()

        def thread() -> None:
            with pytest.raises(WaitTimeout, match=r"is ready after 8 s: the server does not answer \(.*\); ask") as e:
                job.result(timeout=8)
            errors.append(str(e.value))

        waiter = started(thread)
        eventually(lambda: listened(server.client(), [job]) == 1)
        server.stop()
        waiter.join(60)
        assert errors


def test_a_close_ends_the_waits(
    app: Headrace, worker: Worker, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    jobs, ended = enqueue(app, 2), list[str]()

    def thread(wait: Callable[[], object]) -> None:
        with pytest.raises(ClosedError, match="was closed during this wait"):
            wait()
        ended.append("closed")

    waits = (jobs[0].result, lambda: app.wait(jobs), lambda: list(app.as_completed(jobs)), lambda: asyncio.run(tasks()))

    async def tasks() -> None:
        await jobs[1]

    for _ in range(2):
        threads = [started(lambda wait=wait: thread(wait)) for wait in waits]
        eventually(lambda: len(waits_of(app)) == 2)
        eventually(lambda: sum(len(wait.tells) for wait in waits_of(app)) == 6)
        app.close()
        for one in threads:
            one.join(30)
        assert not listening()
    assert len(ended) == 8
    work(app, worker, 2)
    assert app.wait(jobs).done == jobs, "it may be used again"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_waits_over_a_connection_of_its_own(
    app: Headrace, worker: Worker, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    one, two = enqueue(app, 2)
    results: list[Any] = []
    waiter = started(lambda: results.append(one.result(60)))
    eventually(lambda: listened(client, [one]) == 1)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if not listening() and two.result(60) == 2 else 1
        finally:
            os._exit(code)
    eventually(lambda: listened(client, [two]) == 1)
    assert sum(one["sub"] != "0" for one in ours(client)) == 2
    work(app, worker, 2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    waiter.join(30)
    assert results == [0]


def test_a_child_does_not_wait_for_a_look_of_its_parent(app: Headrace) -> None:
    ends = app.client.ends
    assert ends.first()
    with ends._lock:
        pid = os.fork()
        if pid == 0:
            os._exit(1 if ends._lock.locked() or not ends.first() else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.any_server
def test_a_half_open_connection_is_noticed(
    server_name: str, new_server: Callable[..., Server], eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_listener, "RECHECK", 0.1)
    server = new_server(server_name, tcp=True)
    with Proxy(server) as proxy, made(proxy.url) as app, made(server.url) as direct:
        ends: Any = app.client.ends
        for one in getattr(ends, "_parts", [ends]):
            one.attempt_time = 1.0
        (job,), results = enqueue(app, 1), list[Any]()
        waiter = started(lambda: results.append(job.result()))
        eventually(lambda: listened(server.client(), [job]) == 1)
        accepted = proxy.accepted
        proxy.mode = "swallow"
        eventually(lambda: proxy.accepted > accepted)
        proxy.mode = "pass"
        proxy.drop()
        work(direct, Worker(direct), 1)
        waiter.join(30)
        assert results == [0]


# Several jobs.


def test_wait_tells_what_has_ended(app: Headrace, worker: Worker) -> None:
    jobs = enqueue(app, 5)
    work(app, worker, 2)
    assert app.wait(jobs, timeout=0) == (jobs[:2], jobs[2:])
    assert not listening()
    assert app.wait(jobs, timeout=0.05) == (jobs[:2], jobs[2:])
    thread = started(lambda: work(app, worker, 3))
    done, pending = app.wait(iter([*jobs, *jobs[::-1]]), timeout=60)
    assert (done, pending) == (jobs, [])
    thread.join(30)
    assert app.wait([]) == ([], [])
    assert app.wait(jobs, timeout=0) == (jobs, [])


def test_what_is_not_stored_has_ended(app: Headrace, worker: Worker) -> None:
    (job,) = enqueue(app, 1)
    gone: Job[Any] = Job(app.client, MISSING, "double", bytes, None)
    assert app.wait([gone, job], timeout=0.05) == ([gone], [job])
    assert next(iter(app.as_completed([job, gone]))) == gone
    with pytest.raises(JobNotFound):
        gone.result()


def test_wait_returns_when_it_is_told_to(app: Headrace, worker: Worker) -> None:
    jobs = enqueue(app, 3)
    thread = started(lambda: work(app, worker, 1))
    assert app.wait(jobs, timeout=60, return_when="FIRST_COMPLETED") == (jobs[:1], jobs[1:])
    thread.join(30)

    def fail() -> None:
        one, two = worker.claim()
        worker.settle(one, "failed", error_json(JobError(type="ValueError", message="x")))
        assert two

    thread = started(fail)
    assert app.wait(jobs, timeout=60, return_when="FIRST_EXCEPTION") == (jobs[:2], jobs[2:])
    thread.join(30)
    with pytest.raises(OptionsError, match="return_when must be one of ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEP"):
        app.wait(jobs, return_when="first")  # type: ignore[arg-type]


def test_jobs_come_as_they_end(app: Headrace, worker: Worker) -> None:
    jobs = enqueue(app, 4)
    work(app, worker, 2)
    given = app.as_completed([*jobs, jobs[0]], timeout=60)
    completed = iter(given)
    assert [next(completed), next(completed)] == jobs[:2]
    for job in jobs[2:]:
        work(app, worker, 1)
        assert next(completed) == job
    assert list(completed) == []
    assert list(app.as_completed([])) == []


def test_as_completed_says_what_is_late(app: Headrace, worker: Worker) -> None:
    jobs = enqueue(app, 8)
    work(app, worker, 1)
    completed = iter(app.as_completed(jobs, timeout=0.05))
    assert next(completed) == jobs[0]
    with pytest.raises(WaitTimeout, match=r"^7 of 8 have not ended after 0.05 s: \w+, .* and 2 more: wait again") as e:
        next(completed)
    assert jobs[1].id in str(e.value)


def test_a_loop_that_is_left_listens_no_longer(
    app: Headrace, worker: Worker, client: redis.Redis, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_listener, "RECHECK", 0.05)
    jobs = enqueue(app, 3)
    thread = started(lambda: work(app, worker, 1))
    for _ in app.as_completed(jobs, timeout=60):
        break
    thread.join(30)
    eventually(lambda: listened(client, jobs) == 0)
    assert not waits_of(app)


async def test_tasks_wait_for_many(url: str) -> None:
    async with made(url) as app:
        jobs = enqueue(app, 5)
        worker = Worker(app)
        work(app, worker, 1)
        assert await app.await_(jobs, timeout=0) == (jobs[:1], jobs[1:])
        ending = asyncio.create_task(asyncio.to_thread(work, app, worker, 4))
        assert [job async for job in app.as_completed(jobs, timeout=60)][:1] == jobs[:1]
        await ending
        assert await app.await_([*jobs, *jobs]) == (jobs, [])
        assert await app.await_([]) == ([], [])
        (late,) = enqueue(app, 1)
        assert await app.await_([late], timeout=0.02) == ([], [late])
        with pytest.raises(WaitTimeout, match="1 of 1 have not ended"):
            async for _ in app.as_completed([late], timeout=0.02):
                pass
        waiting = asyncio.create_task(app.await_([late]))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


def test_runs_and_jobs_are_waited_for_together(app: Headrace, worker: Worker) -> None:
    (job,) = enqueue(app, 1)
    run = create(app, chain("a"))
    run.start()
    assert app.wait([run, job], timeout=0.02) == ([], [run, job])
    thread = started(lambda: Dispatcher(app).work())
    assert app.wait([run], timeout=60).done == [run]
    thread.join(30)


def test_what_cannot_be_waited_for_is_refused_at_the_call(app: Headrace, url: str) -> None:
    (job,) = enqueue(app, 1)
    for wrong in (job, job.id, 7):
        with pytest.raises(ArgumentError, match=r"takes a list of jobs and workflow runs, not .*: write \[job\]"):
            app.wait(wrong)  # type: ignore[arg-type, type-var]
    for wrong in (job.id, None, app.tasks["double"].job(1)):
        with pytest.raises(ArgumentError, match=r"takes handles of jobs and workflow runs, not .*: task.enqueue"):
            app.as_completed([wrong])  # type: ignore[list-item, type-var]
    with made(url) as other, pytest.raises(ArgumentError, match="belongs to another application"):
        other.wait([job])
    with pytest.raises(OptionsError, match="timeout must be at least 0"):
        app.as_completed([job], timeout=-1)


async def test_a_wait_on_a_running_loop_is_refused(app: Headrace) -> None:
    (job,) = enqueue(app, 1)
    with pytest.raises(WaitRefused, match=r"wait\(\) would block the event loop: await app.await_\(jobs\)"):
        app.wait([job])
    with pytest.raises(WaitRefused, match="async for job in"):
        iter(app.as_completed([job]))
    assert app.wait([job], timeout=0).pending == [job]
    assert app.wait([job], timeout=0.01, allow_wait=True).pending == [job]
    await app.aclose()


def test_a_wait_of_infinity_ends_with_the_job(app: Headrace, worker: Worker, client: redis.Redis) -> None:
    (job,) = enqueue(app, 1)
    found: list[int] = []
    waiting = started(lambda: found.append(job.result(timeout=math.inf)))
    deadline.eventually(lambda: listened(client, [job]) == 1)
    work(app, worker, 1)
    waiting.join(30)
    assert found == [0]


async def test_a_coroutine_may_wait_for_infinity(app: Headrace, worker: Worker) -> None:
    (job,) = enqueue(app, 1)
    waiting = asyncio.create_task(job.aresult(timeout=math.inf))
    await asyncio.sleep(0)
    await asyncio.to_thread(work, app, worker, 1)
    assert await waiting == 0
    await app.aclose()
