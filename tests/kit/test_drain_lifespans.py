"""A drain enters the lifespans of the kinds that it runs jobs of, before the first of them, and leaves them at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from headrace import Headrace, current_job
from headrace.errors import LifespanError
from headrace.testing import Kit

app = Headrace()
seen: list[str] = []
broken: list[str] = []


@app.lifespan(kind=("process", "thread"))
def database() -> Iterator[dict[str, str]]:
    if broken:
        raise ConnectionError("no database")
    seen.append("database in")
    yield {"db": "open"}
    seen.append("database out")


@app.lifespan
async def pool() -> AsyncIterator[dict[str, object]]:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    seen.append("pool in")
    yield {"loop": loop}
    assert (asyncio.get_running_loop(), asyncio.current_task()) == (loop, task)
    seen.append("pool out")


@app.task
def store() -> str:
    state: str = current_job().state["db"]
    return state


@app.task(kind="fork")
def bare() -> bool:
    return current_job().state is None


@app.task
async def fetch() -> bool:
    return current_job().state["loop"] is asyncio.get_running_loop()


@pytest.fixture
def headrace_target() -> Headrace:
    seen.clear()
    broken.clear()
    return app


def test_jobs_of_a_drain_find_the_state_of_their_kind(headrace_app: Kit) -> None:
    jobs = [store.enqueue(), fetch.enqueue(), bare.enqueue(), store.enqueue(), fetch.enqueue()]
    headrace_app.drain()
    assert [job.result() for job in jobs] == ["open", True, True, "open", True]
    assert seen == ["database in", "pool in", "database out", "pool out"]


async def test_those_of_an_asynchronous_drain_live_on_the_loop_of_the_test(headrace_app: Kit) -> None:
    jobs = [await store.aenqueue(), await fetch.aenqueue(), await fetch.aenqueue()]
    await headrace_app.adrain()
    assert [await job for job in jobs] == ["open", True, True]
    assert sorted(seen) == ["database in", "database out", "pool in", "pool out"]


def test_a_drain_that_needs_none_enters_none(headrace_app: Kit) -> None:
    bare.enqueue()
    headrace_app.drain()
    assert seen == []


def test_one_that_cannot_be_entered_ends_the_drain_with_its_error(headrace_app: Kit) -> None:
    broken.append("x")
    job = store.enqueue()
    with pytest.raises(LifespanError, match="database cannot be entered: ConnectionError: no database") as caught:
        headrace_app.drain()
    assert isinstance(caught.value.__cause__, ConnectionError)
    broken.clear()
    headrace_app.drain()
    assert job.result() == "open"


def test_one_is_left_although_a_job_of_the_drain_fails(headrace_app: Kit) -> None:
    store.enqueue()
    headrace_app.stub(fetch, raises=ValueError("no"))
    fetch.enqueue()
    with pytest.raises(ValueError, match="no"):
        headrace_app.drain()
    assert seen == ["database in", "pool in", "database out", "pool out"]
