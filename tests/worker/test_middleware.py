"""Middleware in real runners: asynchronous ones, what they see, what they swallow, and what running nodes add."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest

from headrace import CurrentJob, Headrace, Submission, current_job
from headrace.model.headers import unpacked
from headrace.model.ids import flow_id, node_id
from headrace.model.job import Claim, parse_error
from headrace.model.workflow import NodeFacts, pack_facts, unpack_grown
from tests.worker import rig
from tests.worker.rig import Runner, error_of

KINDS = ("process", "fork", "thread", "async")
HEADERS = msgspec.msgpack.encode({"tenant": "a"})


@pytest.fixture
def start() -> Iterator[Callable[..., Runner]]:
    with rig.runners() as make:
        yield make


@pytest.fixture
def app() -> Headrace:
    app = Headrace()
    for kind in ("process", "fork", "thread"):
        app.task(name=f"{kind}.seen", kind=kind)(seen)  # type: ignore[arg-type]
        app.task(name=f"{kind}.wrong", kind=kind)(wrong)  # type: ignore[arg-type]
        app.task(name=f"{kind}.adds", kind=kind)(adds)  # type: ignore[arg-type]
    app.task(name="async.seen")(aseen)
    app.task(name="async.wrong")(awrong)
    app.task(name="async.adds")(aadds)
    return app


met: list[str] = []


def seen(*values: int, name: str = "") -> list[str]:
    return list(met)


async def aseen(*values: int, name: str = "") -> list[str]:
    await asyncio.sleep(0)
    return list(met)


def wrong() -> None:
    raise ValueError("said in vain")


async def awrong() -> None:
    await asyncio.sleep(0)
    raise ValueError("said in vain")


def adds(task: str) -> str:
    current_job().workflow.run(task, 7)
    return "added"


async def aadds(task: str) -> str:
    return adds(task)


def claimed(token: int, task: str, *args: Any, **kwargs: Any) -> Claim:
    return Claim(
        f"id{token}", token, "default", 0, task, msgspec.msgpack.encode((args, kwargs)), token, headers=HEADERS
    )


def node(token: int, task: str, *args: Any, maps: bool = False) -> Claim:
    """A start of a node of a workflow."""
    facts = pack_facts(NodeFacts("first", "graph", maps))
    data = msgspec.msgpack.encode((args, {}))
    id = node_id(flow_id(1, 1), 1)
    return Claim(id, token, "default", 0, task, data, token, facts=facts, headers=HEADERS)


@pytest.mark.parametrize("kind", KINDS)
def test_it_sees_arguments_and_headers(start: Callable[..., Runner], app: Headrace, kind: str) -> None:
    @app.middleware
    @contextlib.contextmanager
    def look(job: CurrentJob) -> Iterator[None]:
        met[:] = [f"{job.args} {dict(job.kwargs)} {dict(job.headers)}"]
        yield

    one = start(kind, app=app)
    one.one(claimed(1, f"{kind}.seen", 1, 2, name="Ada"))
    assert one.value(1) == ["(1, 2) {'name': 'Ada'} {'tenant': 'a'}"]


def test_an_asynchronous_one_runs_on_the_loop_of_the_job(start: Callable[..., Runner], app: Headrace) -> None:
    @app.middleware
    @contextlib.asynccontextmanager
    async def look(job: CurrentJob) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        assert current_job() is job
        met[:] = [f"in {type(asyncio.get_running_loop()).__name__ != ''}"]
        yield

    one = start("async", app=app)
    one.one(claimed(1, "async.seen"))
    assert one.value(1) == ["in True"]


@pytest.mark.parametrize("kind", ["process", "fork", "thread"])
def test_an_ordinary_function_fails_inside_of_an_asynchronous_one(
    start: Callable[..., Runner], app: Headrace, kind: str
) -> None:
    @app.middleware
    @contextlib.asynccontextmanager
    async def look(job: CurrentJob) -> AsyncIterator[None]:
        yield

    error = error_of(start(kind, app=app).one(claimed(1, f"{kind}.seen")))
    assert error.type == "headrace.errors.OptionsError"
    assert f"{kind}.seen is an ordinary function: make it `async def`, or give it __enter__" in error.message


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_swallows_is_said_before_the_end(start: Callable[..., Runner], app: Headrace, kind: str) -> None:
    app.middleware(lambda job: contextlib.suppress(ValueError))
    one = start(kind, app=app)
    assert one.one(claimed(1, f"{kind}.wrong")).ended.kind == "succeeded"
    assert one.value(1) is None
    (said,) = one.said
    error = parse_error(said.swallowed.encode())
    assert error is not None
    assert (error.type, error.message, error.attempt) == ("ValueError", "said in vain", 1)
    assert "in wrong" in error.traceback or "in awrong" in error.traceback
    if kind != "fork":
        # The next one, which swallows nothing, says nothing. A child of the fork kind runs one job.
        one.one(claimed(2, f"{kind}.seen"))
        assert len(one.said) == 1


@pytest.mark.parametrize("how", ["map", "adds"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_running_node_adds_passes_the_enqueue_middleware(
    start: Callable[..., Runner], app: Headrace, kind: str, how: str
) -> None:
    def change(act: Submission) -> None:
        assert (act.verb, act.workflow_id) == ("grow", flow_id(1, 1))
        for job in act.jobs:
            assert (job.id, job.task, job.args, dict(job.headers)) == ("", f"{kind}.seen", (7,), {"tenant": "a"})
            job.headers["by"] = current_job().task
            job.change(priority=3)

    @contextlib.contextmanager
    def plain(act: Submission) -> Iterator[None]:
        change(act)
        yield

    @contextlib.asynccontextmanager
    async def awaited(act: Submission) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        change(act)
        yield

    app.enqueue_middleware(awaited if kind == "async" else plain)
    task = f"{kind}.seen" if how == "map" else f"{kind}.adds"
    done = start(kind, app=app).one(node(1, task, [7, 7], maps=True) if how == "map" else node(1, task, f"{kind}.seen"))
    assert done.ended.kind == "growing", error_of(done)
    added = [one for one in unpack_grown(done.ended.data).graft.nodes if one.role == ""]
    assert len(added) == (2 if how == "map" else 1)
    for one in added:
        assert dict(unpacked(one.form.headers)) == {"tenant": "a", "by": task}
        assert one.form.priority == 3


@pytest.mark.parametrize("kind", ["process", "async"])
def test_a_node_whose_nodes_are_refused_fails(start: Callable[..., Runner], app: Headrace, kind: str) -> None:
    @app.enqueue_middleware
    @contextlib.contextmanager
    def refuse(act: Submission) -> Iterator[None]:
        raise PermissionError("not you")
        yield

    done = start(kind, app=app).one(node(1, f"{kind}.adds", f"{kind}.seen"))
    assert done.ended.kind == "failed"
    assert (error_of(done).type, error_of(done).message) == ("PermissionError", "not you")
