"""The connections of a process are bounded, its calls wait in line beyond that, and idle connections end."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator

import pytest
import redis

from headrace import Headrace, errors
from headrace.protocol import index_pages, keys
from headrace.protocol.script import Call
from headrace.settings import Settings
from headrace.store import connection
from headrace.store.connection import AllInUse, ConnectionPool
from headrace.store.store import Store
from tests.deadline import eventually, held_up
from tests.store.twin import KINDS, Twin, started

Make = Callable[..., Twin]


@pytest.fixture(autouse=True)
def alone(client: redis.Redis) -> None:
    """End the connections of earlier tests whose garbage is not collected yet: tests here count them."""
    for one in client.client_list():
        if one["name"] == "headrace":
            client.client_kill_filter(_id=one["id"])


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, url: str) -> Iterator[Make]:
    """Make a store of the kind under test: ``make(max_connections=4)``."""
    made: list[Twin] = []

    def one(**settings: object) -> Twin:
        made.append(Twin(request.param, url, **settings))
        return made[-1]

    yield one
    for twin in made:
        twin.close()


def size() -> Call[index_pages.IndexPage]:
    return index_pages.page(keys.Keys(), "ready:default")


def ours(client: redis.Redis) -> int:
    return sum(one["name"] == "headrace" for one in client.client_list())


def pool_of(twin: Twin) -> ConnectionPool[object]:
    store = twin.store
    return store._pool if isinstance(store, Store) else next(iter(store._pools.values()))[0]


def in_line(twin: Twin) -> int:
    return len(pool_of(twin).line)


# A bound.


def test_calls_beyond_the_bound_wait_in_line(make: Make, client: redis.Redis) -> None:
    twin = make(max_connections=4)
    twin.run(size())
    client.client_pause(60_000, all=False)
    try:
        many = started(lambda: twin.at_once([size() for _ in range(40)]))
        eventually(lambda: in_line(twin) == 36)
    finally:
        client.client_unpause()
    many.join(30)
    assert not many.is_alive()
    assert ours(client) == 4
    assert len(pool_of(twin).idle) == 4


def test_a_bound_of_one_serves_all(make: Make, client: redis.Redis) -> None:
    twin = make(max_connections=1)
    twin.at_once([size() for _ in range(40)])
    assert ours(client) == 1


def test_calls_in_line_end_with_those_before_them_when_the_server_is_silent(make: Make, client: redis.Redis) -> None:
    twin = make(max_connections=2, timeout=6)
    twin.run(size())
    failed: list[object] = []

    def one() -> None:
        with pytest.raises(errors.StoreUnavailable) as found:
            twin.run(size())
        failed.append(found.value)

    async def all_of_them() -> None:
        failed.extend(await asyncio.gather(*(twin.store.run(size()) for _ in range(20)), return_exceptions=True))  # type: ignore[arg-type]

    client.client_pause(60_000, all=False)
    try:
        if twin._runner:
            twin._runner.run(all_of_them())
        else:
            for thread in [started(one) for _ in range(20)]:
                thread.join(30)
    finally:
        client.client_unpause()
    assert [type(error) for error in failed] == [errors.StoreUnavailable] * 20
    # No permit is lost.
    eventually(lambda: len(pool_of(twin).idle) + len(pool_of(twin)._permits) == 2)
    twin.at_once([size() for _ in range(20)])


def test_a_call_in_line_says_what_to_do_and_that_it_stored_nothing(url: str) -> None:
    store = Store(url, Settings(max_connections=2, timeout=4))
    held = [store._pool.take(), store._pool.take()]
    with pytest.raises(errors.StoreUnavailable, match=r"all 2 connections .* page was not sent, so"):
        store.run(size())
    for one in held:
        store._pool.give(one)
    store.run(size())
    store.close()


async def test_a_wait_in_line_ends_in_time_and_leaves_the_line() -> None:
    pool: ConnectionPool[object] = ConnectionPool(1)
    assert pool.take() is None
    with pytest.raises(AllInUse):
        pool.wait(0.001)
    with held_up(0.3), pytest.raises(AllInUse):
        pool.wait(0.2)
    with pytest.raises(AllInUse):
        await pool.await_(0.001)
    assert not pool.line
    pool.give(connection := object())
    assert pool.wait(0.0) is connection
    pool.give(connection)
    assert await pool.await_(0.0) is connection


async def test_a_coroutine_that_is_cancelled_in_line_hands_on_what_it_got() -> None:
    for given_first in (False, True):
        pool: ConnectionPool[object] = ConnectionPool(1)
        assert pool.take() is None
        first, second = (asyncio.create_task(pool.await_(60)) for _ in range(2))
        while len(pool.line) < 2:
            await asyncio.sleep(0)
        connection = object()
        if given_first:
            pool.give(connection)
            first.cancel()
        else:
            first.cancel()
            pool.give(connection)
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await second is connection
        pool.give(connection)
        assert (list(pool.idle), list(pool.line)) == ([connection], [])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_does_not_wait_for_the_connections_of_its_parent(url: str) -> None:
    store = Store(url, Settings(max_connections=1))
    store.run(size())
    held = store._pool.take()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            store.run(size())
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    store._pool.give(held)
    store.close()


# An end.


def test_idle_connections_end_but_for_the_last(
    make: Make, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "IDLE", 0.1)
    twin = make()
    twin.run(size())
    client.client_pause(60_000, all=False)
    try:
        many = started(lambda: twin.at_once([size() for _ in range(12)]))
        eventually(lambda: len(pool_of(twin)._permits) == 32 - 12)
    finally:
        client.client_unpause()
    many.join(30)

    def ended() -> bool:
        return ours(client) == 1 and len(pool_of(twin)._permits) == 31

    async def rest() -> None:
        while not ended():
            await asyncio.sleep(0.01)

    if twin._runner:
        twin._runner.run(rest())
    eventually(ended)
    twin.run(size())
    assert ours(client) == 1
    eventually(lambda: not any(one.name == "headrace-idle" for one in threading.enumerate()))


def test_a_connection_that_is_used_does_not_end(url: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IDLE", 3600.0)
    pool = ConnectionPool[object](4)
    pool.take(), pool.take()

    class Used:
        def __init__(self, used: float) -> None:
            self.used = used

    old, new = Used(-1e9), Used(1e12)
    for one in (old, new):
        pool.give(one)
    assert pool.expired() == [old]
    assert list(pool.idle) == [new]


def test_a_program_of_one_thread_has_one_thread(url: str) -> None:
    store = Store(url, Settings())
    before = set(threading.enumerate())
    for _ in range(3):
        store.run(size())
    assert set(threading.enumerate()) <= before
    store.close()


# Of an application.


async def test_hundreds_of_coroutines_that_enqueue_share_the_connections(url: str, client: redis.Redis) -> None:
    app = Headrace(url=url)

    @app.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    jobs = await asyncio.gather(*(double.aenqueue(n) for n in range(500)))
    assert ours(client) <= 32
    assert len({job.id for job in jobs}) == app.queues["default"].size == 500
    await app.aclose()


async def test_hundreds_of_reads_at_once_travel_together(url: str, client: redis.Redis) -> None:
    app = Headrace(url=url)

    @app.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    @app.workflow(name="twice")
    def twice(flow) -> None:  # type: ignore[no-untyped-def]
        flow.run(double, 1)

    drafts = [double.job(n) for n in range(200)]
    await app.aenqueue_many(drafts)
    run = await twice.acreate()
    await asyncio.gather(drafts[0].handle.arefresh(), run.arefresh())  # makes the server know the scripts
    trips = app.client.astore.round_trips
    *records, record = await asyncio.gather(*(draft.handle.arefresh() for draft in drafts), run.arefresh())
    assert [one.id for one in records] == [draft.handle.id for draft in drafts]
    assert record.id == run.id
    assert app.client.astore.round_trips - trips <= 3
    assert ours(client) <= 3
    with pytest.raises(errors.JobNotFound):
        await app.job(drafts[0].handle.id[:-1] + "!").arefresh()
    await app.aclose()


async def test_a_read_that_fails_fails_for_each_who_asked(url: str, client: redis.Redis) -> None:
    app = Headrace(url=url, timeout=0.2)
    ids = ["0" * 21, "1" * 21]
    await asyncio.gather(*(app.job(id).arefresh() for id in ids), return_exceptions=True)
    client.client_pause(60_000, all=False)
    try:
        found = await asyncio.gather(*(app.job(id).arefresh() for id in ids), return_exceptions=True)
    finally:
        client.client_unpause()
    assert [type(one) for one in found] == [errors.StoreUnavailable] * 2
    assert found[0] is not found[1]
    await app.aclose()
