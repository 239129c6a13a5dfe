"""What type checkers must accept, and the types that they must see. Never run; see test_typing.py."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from datetime import datetime
from typing import Any, assert_type

from headrace import (
    Concurrency,
    CurrentJob,
    Every,
    Flow,
    Headrace,
    Job,
    Limit,
    Node,
    Rate,
    Retry,
    Secret,
    Submission,
    Task,
    Tasks,
    UnsentJob,
    current_job,
)
from headrace.schedules.schedule_handle import Schedule
from headrace.tasks.bulk import Receipt
from headrace.testing import Drained, Enqueued, Kit
from headrace.workflows.definition import Workflow
from headrace.workflows.run import Waited, WorkflowRun

app = Headrace()


@app.task
def fetch(url: str, *, tries: int = 1) -> bytes:
    return url.encode() * tries


@app.task(retries=Retry(max=5), timeout=30, queue="low")
def resize(image: bytes, sizes: list[int]) -> dict[str, int]:
    return {str(size): len(image) for size in sizes}


api = app.limit("api", Rate(500, per=60), Concurrency(20))
assert_type(api, Limit)
assert_type(app.limits["api"], Limit)


@app.task(limits=[api, "account"])
def call(account: str) -> str:
    return account


@app.task(trace="link")
def login(user: str, pin: Secret[str], more: Secret[list[int]] | None = None) -> Secret[bytes]:
    assert_type(pin, str)
    return f"{user}{pin}{more}".encode()


assert_type(login.enqueue("ada", "0831", [1]), Job[bytes])
assert_type(login("ada", pin="0831"), bytes)

customer: ContextVar[str] = ContextVar("customer")
app.propagate("customer", customer)
app.propagate("language", lambda: "de", nullcontext)


@app.task
async def notify(user: int) -> str:
    return str(user)


@app.task(result_ttl=0, kind="async")
async def forget() -> None: ...


@app.enqueue_middleware
@contextmanager
def stamp(act: Submission) -> Generator[None, None, None]:
    for job in act.jobs:
        assert_type(job.headers, dict[str, str])
        job.change(queue="low", priority=2)
    yield


@app.enqueue_middleware
@asynccontextmanager
async def trace(act: Submission) -> AsyncGenerator[None, None]:
    assert_type(act.workflow_id, str)
    yield


@app.middleware
@asynccontextmanager
async def tenant(job: CurrentJob) -> AsyncGenerator[None, None]:
    assert_type(job.headers, Mapping[str, str])
    assert_type(job.args, tuple[Any, ...])
    yield


@app.workflow
def thumbnails(flow: Flow, url: str, sizes: list[int]) -> None:
    image = flow.run(fetch, url)
    assert_type(image, Node[bytes])
    small = flow.run(resize.options(queue="low"), image, sizes, after=[fetch, "x", image.on_failure("continue")])
    assert_type(small, Node[dict[str, int]])
    assert_type(flow.run(notify, 7, before=fetch, when=small, name="told", on_failure="skip"), Node[str])
    assert_type(flow.map(fetch, image, params={"tries": 2}, queue="low"), Node[list[bytes]])
    assert_type(flow.run("elsewhere", image, delay=3, options={"retries": 2}), Node[Any])
    assert_type(flow.run(fetch, url, undo=forget), Node[bytes])


apart = Tasks(queue="mail", retries=Retry(delay=[10, 30, 60]))
whole = Headrace(task_defaults={"retries": 3, "queue": "mail"})


@apart.task
def send(to: str) -> int:
    return len(to)


@apart.task(kind="async", retries=3)
async def asend(to: str) -> int:
    return len(to)


@apart.workflow
def letters(flow: Flow, to: list[str]) -> None:
    assert_type(flow.map(send, to), Node[list[int]])


app.include(apart)
app.include(apart, Tasks(), move=True)


@app.lifespan
def everywhere() -> Iterator[int]:
    yield 3


@app.lifespan(kind="async")
async def on_loops() -> AsyncIterator[dict[str, int]]:
    yield {}


@apart.lifespan(kind=["thread", "process"])
@contextmanager
def decorated() -> Generator[None]:
    yield


@apart.lifespan()
@asynccontextmanager
async def adecorated() -> AsyncGenerator[None]:
    yield


def state_code() -> None:
    assert_type(everywhere(), Iterator[int])
    assert_type(on_loops(), AsyncIterator[dict[str, int]])
    with decorated() as nothing:
        assert_type(nothing, None)
    assert_type(current_job().state, Any)


def apart_code() -> None:
    assert_type(send("x"), int)
    assert_type(send.enqueue("x").result(), int)
    assert_type(asend.enqueue("x"), Job[int])
    assert_type(letters.create(["x"]), WorkflowRun)


def key_of(name: str = "") -> str:
    return name


@app.workflow(key=key_of, ttl=None, on_success="told", on_failure=notify, globals={"tries": 2})
def nightly(flow: Flow, name: str = "") -> None:
    both = flow.run(thumbnails, "u", [1], after=nightly)
    assert_type(both, Node[Any])
    assert_type(flow.map(thumbnails, both), Node[list[Any]])
    assert_type(current_job().workflow, Flow)


class Money:
    cents = 0


app.types.add(Money, lambda money: money.cents, lambda plain: Money())


def sync_code() -> object:
    assert_type(fetch.enqueue_json('["u"]', b"{}"), Job[bytes])
    record = app.job("0" * 21).refresh()
    assert_type(record.created, datetime)
    assert_type(record.finished, datetime | None)
    assert_type(record.finished_us, int)
    assert_type(record.args, tuple[Any, ...])
    assert_type(record.arguments, dict[str, Any])
    assert_type(record.packed_result, bytes | None)
    assert_type(app.workflows.get("0" * 21).refresh().started, datetime | None)
    assert_type(fetch("u"), bytes)
    assert_type(fetch.enqueue("u", tries=2), Job[bytes])
    assert_type(fetch.enqueue("u").result(timeout=1), bytes)
    assert_type(resize.enqueue(b"", [1]).result(), dict[str, int])
    assert_type(notify.enqueue(7), Job[str])
    assert_type(fetch.broadcast("u"), list[Job[bytes]])
    assert_type(fetch.options(key="k", ordered=True).enqueue("u"), Job[bytes])
    coroutine = assert_type(notify(7), Coroutine[Any, Any, str])
    assert_type(forget.enqueue(), Job[None])
    assert_type(fetch.options(queue="low", delay=60).options(key="k").enqueue("u"), Job[bytes])
    assert_type(app.enqueue_many(fetch.job(url) for url in "abc"), int)
    unsent = fetch.options(headers={"tenant": "a", "trace": None}, request_id="7").job("u")
    assert_type(unsent, UnsentJob[bytes])
    assert_type(unsent.id, str)
    assert_type(unsent.handle, Job[bytes])
    assert_type(unsent.handle.refresh().headers, Mapping[str, str])
    assert_type(app.enqueue_packed([unsent.pack()]), list[Receipt])
    assert_type(fetch.job("u").handle, Job[bytes])
    assert_type(app.by_name("x").enqueue(1, a=2), Job[Any])
    assert_type(thumbnails.create("u", [1]), WorkflowRun)
    assert_type(nightly.options(ttl=3, queue="low").create("x"), WorkflowRun)
    handle = fetch.enqueue("u")
    assert_type(app.wait([handle]), Waited[Job[bytes]])
    assert_type(app.wait([handle], timeout=1, return_when="FIRST_EXCEPTION").done, list[Job[bytes]])
    assert_type([job.result() for job in app.as_completed([handle], 3)], list[bytes])
    assert_type(app.wait([thumbnails.create("u", [1])]).pending, list[WorkflowRun])
    with Kit(app, mode="inline") as kit:
        assert_type(kit.drain(retries=True, limit=3), Drained)
        assert_type(kit.drain(thumbnails.create("u", [1])).ends, Mapping[str, int])
        assert_type(kit.stub(fetch, returns=b"", times=2).calls, list[tuple[tuple[Any, ...], dict[str, Any]]])
        with kit.assert_enqueued(notify, 7, queue="low", count=2) as seen, kit.refute_enqueued(fetch.options(key="k")):
            assert_type(seen.jobs, list[Enqueued])
        with kit.job(attempt=2, headers={"tenant": "a"}) as job:
            assert_type(job, CurrentJob)
        kit.clock.advance(hours=25)
        kit.crash(fetch, at="start")
    defined: Workflow[[str, list[int]]] = thumbnails
    kept: Task[[int], str, Coroutine[Any, Any, str]] = notify
    named: Task[..., Any, Any] = fetch
    return coroutine, kept, named, defined


async def async_code() -> None:
    with Kit(app) as kit:
        assert_type(await kit.adrain(scheduled=True), Drained)
    assert_type(await notify(7), str)
    assert_type(await notify.aenqueue(7), Job[str])
    assert_type(await (await notify.aenqueue(7)).aresult(), str)
    assert_type(await notify.options(priority=3).aenqueue(7), Job[str])
    assert_type(await thumbnails.acreate("u", sizes=[1]), WorkflowRun)
    assert_type(await app.aenqueue_packed([notify.job(1).pack()]), list[Receipt])
    both: list[Job[Any] | WorkflowRun] = [await notify.aenqueue(7), await thumbnails.acreate("u", sizes=[1])]
    assert_type(await app.await_(both), Waited[Job[Any] | WorkflowRun])
    assert_type([await job async for job in app.as_completed([await notify.aenqueue(7)])], list[str])
    assert_type(await app.aenqueue_many([notify.job(1), fetch.job("u")]), int)


assert_type(app.cron("0 9 * * *", fetch, "u", timezone="UTC", overlap="skip", jitter=30), Schedule)
assert_type(app.every(60, resize.options(queue="low"), b"", [1], offset=5, name="n"), Schedule)
assert_type(app.schedules.put("n", Every(60), nightly, "team", missed="all", within=60), Schedule)
assert_type(app.schedules["n"].run(), Job[Any] | None)
assert_type(current_job().tick, datetime | None)
