"""The public face against real servers; a few protocol calls stand in for the worker."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from headrace import CurrentJob, Flow, Headrace, Job, State
from headrace.errors import (
    ArgumentError,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobQuarantined,
    OptionsError,
    ResultMismatch,
    StateError,
    WaitRefused,
    WaitTimeout,
)
from headrace.model.ids import shard_of
from headrace.model.job import Claim, JobError, Outcome, error_json
from headrace.protocol import consume
from headrace.protocol.consume import Note
from headrace.running_job import running
from headrace.workflows.run import WorkflowRun

OWNER = "host-1-abc"


@dataclasses.dataclass
class Size:
    width: int


class Worker:
    """Claims and settles by hand, on each shard."""

    def __init__(self, app: Headrace) -> None:
        self.run = app.client.run
        self.shards = app.client.shards
        self.requests = 0
        for keys in self.shards:
            self.run(consume.register(keys, OWNER, 60_000_000, ["place", "host:1"]))

    def claim(self, limit: int = 100, queue: str = "default") -> list[Claim]:
        claims: list[Claim] = []
        for keys in self.shards:
            self.requests += 1
            claims += self.run(consume.claim(keys, OWNER, self.requests, limit - len(claims), [queue])).jobs
            if len(claims) == limit:
                break
        return claims

    def settle(self, claim: Claim, kind: str, data: bytes = b"", keep: float = 60) -> None:
        self.requests += 1
        outcome = Outcome(claim.id, claim.token, kind, data, round(keep * 1e6))
        keys = self.shards[shard_of(claim.id)]
        settled = self.run(consume.settle(keys, OWNER, self.requests, [(outcome, claim.ready)], 0))
        assert settled.stale == []

    def succeed(self, data: bytes, keep: float = 60) -> None:
        (claim,) = self.claim()
        self.settle(claim, "succeeded", data, keep)


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url, timeout=20) as app:
        app.task(name="resize")(resize)
        app.task(name="fetch")(fetch)
        yield app


@pytest.fixture
def worker(app: Headrace) -> Worker:
    return Worker(app)


def resize(url: str, sizes: list[int]) -> Size:
    return Size(1)


async def fetch(url: str = "") -> bytes:
    return b""


def test_a_job_goes_from_the_call_to_its_result(app: Headrace, worker: Worker) -> None:
    task = app.tasks["resize"]
    job = task.enqueue("u", sizes=[1, 2])
    assert job.state is State.READY
    (claim,) = worker.claim()
    assert job.state is State.RUNNING
    assert (claim.id, claim.task) == (job.id, "resize")
    args, kwargs = task.unpack(claim.args)
    assert task(*args, **kwargs) == Size(1)
    worker.settle(claim, "succeeded", task.pack_result(Size(3)))
    assert job.result(timeout=5) == Size(3)
    assert app.jobs.get(job.id).result() == Size(3)
    assert job.refresh().state is State.SUCCEEDED


async def test_the_same_from_async_code(app: Headrace, worker: Worker) -> None:
    job = await app.tasks["fetch"].aenqueue("u")
    assert await job.astate() is State.READY
    worker.succeed(app.tasks["fetch"].pack_result(b"\x00\xff"))
    assert await job.aresult(timeout=5) == b"\x00\xff"
    assert (await (await app.jobs.aget(job.id)).arefresh()).state is State.SUCCEEDED
    await app.aclose()


def test_a_waiter_is_woken(app: Headrace, worker: Worker, client: redis.Redis, eventually: Callable[..., Any]) -> None:
    job = app.tasks["fetch"].options(result_ttl=0).enqueue()
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(job.result(timeout=20)))
    thread.start()
    eventually(lambda: client.zcard(app.client.keys_for(job.id)("waited")))
    worker.succeed(b"\xc4\x01x", keep=0)
    thread.join(timeout=30)
    assert found == [b"x"]


async def test_coroutines_that_wait_are_woken(
    app: Headrace, worker: Worker, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    job = await app.tasks["fetch"].aenqueue()
    waiting = [asyncio.create_task(job.aresult(timeout=20)) for _ in range(5)]
    await asyncio.to_thread(eventually, lambda: client.zcard(app.client.keys_for(job.id)("waited")))
    await asyncio.to_thread(worker.succeed, b"\xc4\x01x")
    assert await asyncio.gather(*waiting) == [b"x"] * 5
    await app.aclose()


def test_waiting_ends_at_its_time_and_the_job_goes_on(app: Headrace) -> None:
    job = app.tasks["fetch"].enqueue()
    with pytest.raises(WaitTimeout, match=rf"job {job.id} of fetch is ready after 0 s: ask again, or cancel it"):
        job.result(timeout=0)
    with pytest.raises(TimeoutError, match=r"is ready after 0.05 s: no worker lives: start one with"):
        job.result(timeout=timedelta(milliseconds=50))
    with pytest.raises(OptionsError, match="timeout must be at least 0"):
        job.result(timeout=-1)
    assert job.state is State.READY


async def test_who_waited_in_vain_hears_what_is_missing(app: Headrace) -> None:
    job = await app.tasks["fetch"].options(queue="mail").aenqueue()
    for keys in app.client.shards:
        app.client.run(consume.register(keys, OWNER, 60_000_000, ["place", "host:1", "queues", "default"]))
    told = "no worker serves queue mail; workers serve default: start one with headrace worker MODULE:APP --queues mail; ask again"
    with pytest.raises(WaitTimeout, match=told):
        await job.aresult(timeout=0.01)
    waits = asyncio.create_task(job.aresult(timeout=60))
    while app.client.ends._life is None:
        await asyncio.sleep(0.001)
    trips = app.client.store.round_trips
    with pytest.raises(WaitTimeout, match=told):
        job.result(timeout=0.01, allow_wait=True)
    assert app.client.store.round_trips == trips, "all that waits shares the listener's connection"
    waits.cancel()
    await app.aclose()


def test_a_look_is_one_round_trip_and_needs_no_listener(app: Headrace, loaded: None) -> None:
    job = app.tasks["fetch"].enqueue()
    trips = app.client.store.round_trips
    with pytest.raises(WaitTimeout):
        job.result(timeout=0)
    assert app.client.store.round_trips == trips + 1
    assert not [one for one in threading.enumerate() if one.name == "headrace-ends"]


def test_a_failure_carries_its_evidence(app: Headrace, worker: Worker) -> None:
    error = JobError(
        type="ValueError",
        message="no such size",
        attempt=2,
        worker="host:1",
        traceback="Traceback ...\n  resize(url)\n",
    )
    job = app.tasks["resize"].enqueue("u", [])
    (claim,) = worker.claim()
    worker.settle(claim, "failed", error_json(error))
    with pytest.raises(JobFailed) as caught:
        job.result()
    assert str(caught.value) == (
        f"job {job.id} of resize failed at attempt 2 on host:1: ValueError: no such size"
        "\n\nTraceback ...\n  resize(url)"
    )
    assert (caught.value.id, caught.value.error) == (job.id, error)


def test_a_quarantine_names_signal_and_memory(app: Headrace, worker: Worker) -> None:
    job = app.tasks["fetch"].options(max_crashes=1).enqueue()
    (claim,) = worker.claim()
    error = JobError(type="Crashed", message="", signal=11, peak_memory=3 << 20, stderr="Segmentation fault\n")
    worker.settle(claim, "crashed", error_json(error))
    with pytest.raises(JobQuarantined) as caught:
        job.result()
    assert "ended by signal 11, peak memory 3 MiB" in str(caught.value)
    assert "last lines of stderr:\nSegmentation fault" in str(caught.value)


def test_a_result_that_does_not_fit_is_told(app: Headrace, worker: Worker) -> None:
    job = app.tasks["resize"].enqueue("u", [])
    worker.succeed(b"\x81\xa5width\xa1x")
    with pytest.raises(ResultMismatch, match=r"expected int, got str at result.width"):
        job.result()


def test_cancel_ends_what_waits_and_asks_what_runs(app: Headrace, worker: Worker) -> None:
    waiting, later, running = (
        app.tasks["fetch"].enqueue(),
        app.tasks["fetch"].options(delay=60).enqueue(),
        app.tasks["fetch"].options(queue="other").enqueue(),
    )
    assert later.state is State.SCHEDULED
    (claim,) = worker.claim(queue="other")
    assert waiting.cancel() is later.cancel() is State.CANCELLED
    assert waiting.cancel() is State.CANCELLED
    assert running.cancel() is State.RUNNING
    with pytest.raises(JobCancelled, match="was cancelled: Cancelled: cancelled before it started"):
        waiting.result()
    worker.settle(claim, "succeeded", b"\xc0")
    assert running.cancel() is State.SUCCEEDED


def test_a_cancelled_job_stays_as_long_as_its_failures_would(app: Headrace) -> None:
    kept, gone = app.tasks["fetch"].enqueue(), app.tasks["fetch"].options(failure_ttl=0).enqueue()
    assert kept.cancel() is gone.cancel() is State.CANCELLED
    assert kept.state is State.CANCELLED
    with pytest.raises(JobNotFound):
        _ = gone.state
    by_id = app.jobs.get(app.tasks["fetch"].options(failure_ttl=0).enqueue().id)
    by_id.cancel()
    with pytest.raises(JobNotFound):
        by_id.refresh()


async def test_retry_runs_a_finished_job_again(app: Headrace, worker: Worker) -> None:
    job = app.tasks["fetch"].enqueue()
    (claim,) = worker.claim()
    with pytest.raises(StateError, match="is running: only a job that has ended can be retried"):
        job.retry()
    worker.settle(claim, "succeeded", b"\xc0")
    job.retry()
    assert job.state is State.READY
    with pytest.raises(StateError, match="is ready: only a job that has ended can be retried"):
        job.retry()
    worker.succeed(b"\xc0")
    await job.aretry()
    assert await job.acancel() is State.CANCELLED
    await app.aclose()


async def test_a_wait_that_would_hold_a_runner_or_a_loop_is_refused(app: Headrace, worker: Worker) -> None:
    job = app.tasks["fetch"].enqueue()

    @app.workflow(name="one")
    def one(flow: Flow) -> None:
        flow.run(app.tasks["fetch"])

    run = one.create()
    with pytest.raises(WaitRefused, match=r"result\(\) would block the event loop: await job, or job.aresult\(\)"):
        job.result()
    with pytest.raises(WaitRefused, match=r"wait\(\) would block the event loop: await run, or accept it with allow_"):
        run.wait(5)
    for at_once in (0, timedelta(0)):
        with pytest.raises(WaitTimeout):
            job.result(timeout=at_once)
        with pytest.raises(WaitTimeout):
            run.wait(timeout=at_once)
    worker.succeed(app.tasks["fetch"].pack_result(b"x"))
    assert await job == job.result(allow_wait=True) == b"x"
    # In a job, whatever waits.
    claim = Claim("0" * 21, 7, "default", 0, "tasks.f", b"", 7, b"", "", once=False)
    with running(CurrentJob(claim, print)):
        for wait in (job.aresult(5), _awaited(run)):
            with pytest.raises(
                WaitRefused, match=r"in job 0+ of tasks.f would keep a runner waiting, .*flow.run deliv"
            ):
                await wait
        assert await job.aresult(5, allow_wait=True) == await job.aresult(0) == b"x"
        for call in (job.result, run.wait):
            with pytest.raises(WaitRefused, match="make both nodes of a workflow"):
                await asyncio.to_thread(call)
    await app.aclose()


async def _awaited(run: WorkflowRun) -> None:
    await run


MISSING = "0" * 21


def test_what_is_not_stored_is_not_found(app: Headrace) -> None:
    job: Job[Any] = app.tasks["fetch"].options(failure_ttl=0).enqueue()
    job.cancel()
    verbs = (lambda: job.state, job.refresh, job.result, job.cancel, job.retry, lambda: app.jobs.get(MISSING))
    for verb in verbs:
        with pytest.raises(JobNotFound, match="is stored: it never existed, it ended and its retention"):
            verb()
    for wrong in ("", "x", MISSING + "0", "U" * 22, "l" * 20, "héllo"):
        with pytest.raises(JobNotFound, match="is not the id of a job"):
            app.jobs.get(wrong)
    for wrong in ("\udcff", "x" * 257, 5):
        with pytest.raises(JobNotFound, match="is not the id of a job"):
            app.jobs.why(wrong)  # type: ignore[arg-type]


async def test_logs_and_progress_are_read(app: Headrace, worker: Worker) -> None:
    job = app.tasks["fetch"].enqueue()
    (claim,) = worker.claim()
    notes = [Note(claim.id, claim.token, 0.5, "half"), Note(claim.id, claim.token, lines=("a", "b"))]
    worker.run(consume.note(app.client.keys_for(claim.id), OWNER, notes))
    assert job.logs() == await job.alogs() == ["a", "b"]
    assert job.logs(limit=1) == ["b"]
    record = job.refresh()
    assert (record.progress, record.progress_text) == (0.5, "half")
    worker.settle(claim, "succeeded", b"\xc0")
    await app.aclose()


async def test_a_request_id_makes_one_job(app: Headrace) -> None:
    bound = app.tasks["fetch"].options(request_id="order-7")
    first = bound.enqueue("a")
    assert bound.enqueue("b").id == (await bound.aenqueue("c")).id == first.id
    assert app.tasks["fetch"].options(request_id="order-8").enqueue().id != first.id
    assert app.queues["default"].size == 2
    await app.aclose()


def test_by_name_enqueues_what_is_not_here(app: Headrace, worker: Worker) -> None:
    job = app.by_name("elsewhere.run", queue="low", priority=3).enqueue("u", size=[1])
    (claim,) = worker.claim(queue="low")
    assert (claim.task, claim.args) == ("elsewhere.run", b"\x92\x91\xa1u\x81\xa4size\x91\x01")
    worker.settle(claim, "succeeded", b"\x81\xa1a\x01")
    assert job.result() == app.jobs.get(job.id).result() == {"a": 1}
    with pytest.raises(OptionsError, match="task name 'a b' cannot be used"):
        app.by_name("a b")


def test_by_name_checks_what_is_here(app: Headrace) -> None:
    with pytest.raises(ArgumentError, match="argument 'sizes' of resize: expected array, got int"):
        app.by_name("resize").enqueue("u", 3)


def test_many_jobs_stream_in_chunks(app: Headrace) -> None:
    task, store = app.tasks["fetch"], app.store
    task.enqueue()
    before = store.round_trips
    assert app.enqueue_many(task.job(str(n)) for n in range(2500)) == 2500
    assert store.round_trips - before == 3
    assert app.enqueue_many([]) == 0
    assert app.jobs.count("ready") == app.queues["default"].size == 2501


def test_large_jobs_go_in_smaller_chunks(app: Headrace) -> None:
    task, store = app.tasks["fetch"], app.store
    task.enqueue()
    before = store.round_trips
    app.enqueue_many(task.job("x" * 300_000) for _ in range(8))
    assert store.round_trips - before == 2


async def test_drafts_that_are_kept_tell_their_jobs(app: Headrace, worker: Worker) -> None:
    task = app.tasks["fetch"]
    drafts = [task.options(queue="q").job(str(n)) for n in range(1500)]

    async def stream() -> AsyncIterator[Any]:
        for draft in drafts:
            yield draft

    assert await app.aenqueue_many(stream()) == 1500
    assert await app.aenqueue_many([task.job()]) == 1
    assert [claim.id for claim in worker.claim(3, "q")] == sorted(draft.id for draft in drafts)[:3]
    assert drafts[7].handle.state is State.READY or drafts[7].handle.state is State.RUNNING
    assert len({draft.id for draft in drafts}) == 1500
    with pytest.raises(OptionsError, match="was stored already") as caught:
        app.enqueue_many([task.job(), *drafts[:1]])
    assert caught.value.__notes__ == ["enqueue_many had stored 0 jobs before this"]
    await app.aclose()


def test_what_ends_a_stream_early_tells_how_far_it_came(app: Headrace) -> None:
    task = app.tasks["fetch"]

    def stream() -> Iterator[Any]:
        for n in range(1200):
            yield task.job(n if n == 1100 else "u")

    with pytest.raises(ArgumentError) as caught:
        app.enqueue_many(stream())
    assert caught.value.__notes__ == ["enqueue_many had stored 1,000 jobs before this"]
    with pytest.raises(ArgumentError, match=r"takes jobs made by task\.job"):
        app.enqueue_many([task])  # type: ignore[list-item]
    assert app.queues["default"].size == 1000


def test_due_times_reach_the_server(app: Headrace) -> None:
    when = datetime.now(UTC) + timedelta(hours=1)
    job = app.tasks["fetch"].options(at=when, expires=timedelta(hours=2)).enqueue()
    record = job.refresh()
    assert (record.state, record.due_us) == (
        State.SCHEDULED,
        (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1),
    )
    assert record.expires_us > record.due_us


def test_an_application_made_before_a_fork_is_used_after_it(app: Headrace) -> None:
    parents = app.tasks["fetch"].enqueue()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            ids = [app.tasks["fetch"].enqueue("child").id for _ in range(20)]
            os.write(writer, ",".join(ids).encode())
        finally:
            os._exit(0)
    mine = [app.tasks["fetch"].enqueue("parent").id for _ in range(20)]
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        theirs = pipe.read().decode().split(",")
    os.waitpid(child, 0)
    assert len({*mine, *theirs, parents.id}) == 41
    assert app.queues["default"].size == 41


def test_a_closed_application_may_be_used_again(app: Headrace) -> None:
    app.tasks["fetch"].enqueue()
    app.close()
    app.close()
    app.tasks["fetch"].enqueue()
    assert app.queues["default"].size == 2


def test_loops_of_several_threads_share_an_application(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each keeps its own connections: one that took another's place left them to be closed by a loop that was gone."""
    app = Headrace(url)
    failed: list[BaseException] = []

    async def some() -> None:
        for _ in range(10):
            await app.aoverview()

    def loops() -> None:
        try:
            for _ in range(5):
                asyncio.run(some())
        except BaseException as error:  # noqa: BLE001 - told by the assertion
            failed.append(error)

    threads = [threading.Thread(target=loops) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    gc.collect()
    assert failed == []
    assert [one.getMessage() for one in caplog.records if one.name == "asyncio"] == []
    app.close()
