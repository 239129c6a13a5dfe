"""A server that stores nothing more: readers compute, writers are told, deletions work, and the reasons are true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import Headrace
from headrace.cache import Cache
from headrace.errors import StoreFull
from headrace.protocol.keys import Keys
from tests.deadline import eventually
from tests.servers import Server

KEYS = Keys()


@pytest.fixture
def own(new_server: Callable[..., Server]) -> Iterator[Server]:
    server = new_server()
    yield server
    server.client().config_set("maxmemory", 0)


@pytest.fixture
def app(new_app: Callable[..., Headrace], own: Server) -> Headrace:
    return new_app(own.url)


@pytest.fixture
def full(own: Server) -> Callable[[], None]:
    def fill() -> None:
        own.client().config_set("maxmemory", 1)

    return fill


def test_a_full_server_stores_no_cached_value(cache: Cache, own: Server, full: Callable[[], None]) -> None:
    client = own.client()
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + (3 << 20))  # type: ignore[index, call-overload]
    stored = 0
    with pytest.raises(StoreFull):
        for stored in range(40):
            cache.set(f"n{stored}", "x" * (1 << 20), tags=["x"])
    assert stored < 4
    full()
    with pytest.raises(StoreFull):
        cache.set("n0", "y", tags=["y"])
    assert cache.get("n0") == "x" * (1 << 20), "a refused write changes nothing"
    assert set(client.keys("*tagged:*")) == {KEYS("tagged:x").encode()}
    assert cache.delete("n0") == 1
    assert cache.delete_tag("x") == stored - 1
    assert cache.clear() == 0


def test_readers_compute_and_keep_nothing(app: Headrace, own: Server, full: Callable[[], None]) -> None:
    cache, calls = app.cache, list[str]()

    @app.cached
    def price(article: int) -> float:
        calls.append("price")
        return article * 1.5

    def make() -> list[int]:
        calls.append("make")
        return [1]

    async def slowly() -> list[int]:
        return make()

    async def coroutines() -> Any:
        found = [await cache.aget("a", make=slowly, tags=["x"]) for _ in range(2)]
        await app.aclose()
        return found

    full()
    assert [cache.get("a", make=make, wait=600) for _ in range(2)] == [[1]] * 2
    assert asyncio.run(coroutines()) == [[1]] * 2
    assert [price(4), price(4)] == [6.0, 6.0]
    assert calls == ["make"] * 4 + ["price"] * 2
    assert own.client().keys("*a*") == own.client().keys("*price*") == []
    assert cache.statistics().faults == 6
    own.client().config_set("maxmemory", 0)
    assert cache.get("a", make=make) == cache.get("a") == [1]


def test_a_server_that_fills_while_a_value_is_computed_is_left_no_lease(
    cache: Cache, own: Server, full: Callable[[], None]
) -> None:
    def make() -> int:
        full()
        return 5

    assert cache.get("a", make=make) == 5
    assert not own.client().exists(KEYS("filling:a"), KEYS.cache("a"))


def test_a_new_process_keeps_copies_though_the_server_is_full(
    cache: Cache, own: Server, other_of: Callable[[str], Cache], full: Callable[[], None]
) -> None:
    cache.set("a", 1)
    full()
    new = other_of(own.url)
    assert new.get("a") == 1
    assert (new.statistics().healthy, new.statistics().fault) == (True, "")
    cache.delete("a")
    eventually(lambda: new.get("a") is None)


@pytest.fixture
def other_of(new_app: Callable[..., Headrace]) -> Callable[[str], Cache]:
    return lambda url: new_app(url).cache


def test_the_reason_for_keeping_nothing_is_the_servers_own(own: Server, other_of: Callable[[str], Cache]) -> None:
    client = own.client()
    other_of(own.url).set("a", 1)
    client.config_set("min-replicas-to-write", 1)
    cache = other_of(own.url)
    assert cache.get("a") == 1
    seen = cache.statistics()
    assert not seen.healthy
    assert "NOREPLICAS" in seen.fault
    assert "proxy" not in seen.fault
    client.config_set("min-replicas-to-write", 0)
