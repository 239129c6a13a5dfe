"""The verbs of ``app.cache``, from threads and from an event loop, against a real server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
import redis

from headrace import Headrace
from headrace.cache import Cache
from headrace.errors import ArgumentError, FrozenValue, OptionsError, PayloadTooLarge
from headrace.protocol.keys import Keys

KEYS = Keys()


@dataclass
class Point:
    x: int
    labels: list[str]


class Count:
    """A function that counts its calls."""

    def __init__(self, value: Any = 1) -> None:
        self.value, self.calls = value, 0

    def __call__(self) -> Any:
        self.calls += 1
        return self.value

    async def slowly(self) -> Any:
        await asyncio.sleep(0)
        return self()


@pytest.fixture
def calls(client: redis.Redis, app: Headrace) -> Callable[[], int]:
    """Commands that the server executed since the last time, other than this question."""
    last = [0]

    def count() -> int:
        now = int(client.info("stats")["total_commands_processed"])  # type: ignore[index, arg-type]
        found, last[0] = now - last[0] - 1, now
        return found

    count()
    return count


def test_a_value_is_read_once_and_then_found_in_the_process(
    cache: Cache, other: Cache, calls: Callable[[], int]
) -> None:
    other.set("a", {"x": [1, "two", None]})
    assert cache.get("a") == {"x": [1, "two", None]}
    assert "a" in cache._values
    calls()
    for _ in range(100):
        assert cache.get("a") == {"x": [1, "two", None]}
    assert calls() == 0
    seen = cache.statistics()
    assert (seen.hits, seen.misses, seen.hit_ratio, seen.used, seen.healthy) == (100, 1, 0.99, 1, True)


def test_what_is_absent_is_remembered_until_it_comes(
    cache: Cache, other: Cache, calls: Callable[[], int], eventually: Callable[..., Any]
) -> None:
    assert cache.get("a") is None
    calls()
    assert [cache.get("a", n) for n in range(50)] == [*range(50)]
    assert calls() == 0
    assert cache.statistics().hits == 50
    other.set("a", 7)
    eventually(lambda: cache.get("a") == 7)


def test_absence_need_not_be_remembered(new_app: Callable[..., Headrace], url: str, calls: Callable[[], int]) -> None:
    cache = new_app(url, cache_absent=False).cache
    for _ in range(5):
        assert cache.get("a") is None
    assert cache.statistics().used == 0
    assert cache.statistics().misses == 5


def test_absent_names_leave_no_more_than_the_bound(new_app: Callable[..., Headrace], url: str) -> None:
    cache = new_app(url, cache_entries=4).cache
    for n in range(1000):
        assert cache.get(str(n)) is None
    assert cache.statistics().used == 4
    assert cache._listener._pending == {}


def test_none_is_a_value(cache: Cache) -> None:
    cache.set("a", None)
    assert cache.get("a", "default") is None
    make = Count(None)
    assert [cache.get("b", "default", make=make) for _ in range(3)] == [None] * 3
    assert make.calls == 1


def test_a_function_computes_what_is_absent(
    cache: Cache, other: Cache, calls: Callable[[], int], eventually: Callable[..., Any]
) -> None:
    make = Count({"n": 1})
    assert cache.get("a", make=make, ttl=60) == {"n": 1}
    eventually(lambda: cache.get("a") and "a" in cache._values)
    calls()
    assert cache.get("a", make=make) == {"n": 1}
    assert calls() == 0
    assert other.get("a", make=make) == {"n": 1}
    assert make.calls == 1


def test_what_a_function_raises_passes_through_and_leaves_nothing(cache: Cache) -> None:
    def fail() -> None:
        raise LookupError("no row")

    with pytest.raises(LookupError, match="no row"):
        cache.get("a", make=fail)
    assert cache.get("a", make=Count(2)) == 2


@pytest.mark.parametrize("change", ["set", "delete", "tag", "clear", "other tag"])
def test_what_was_computed_before_a_change_is_not_stored_after_it(cache: Cache, other: Cache, change: str) -> None:
    """A reader computes from the state before a commit, the writer commits and deletes, then the reader stores."""

    def meanwhile() -> str:
        match change:
            case "set":
                other.set("a", "new")
            case "delete":
                other.delete("a")
            case "tag":
                other.delete_tag("x")
            case "clear":
                other.clear()
            case _:
                other.delete_tag("y")
        return "old"

    got = cache.get("a", make=meanwhile, tags=["w", "x"])
    if change == "set":
        assert got == other.get("a") == cache.get("a") == "new"
    elif change == "other tag":
        assert got == other.get("a") == "old"
    else:
        assert got == "old", "the caller gets what it computed"
        assert other.get("a") is None
        assert [cache.get("a", make=Count(n), tags=["x"]) for n in ("new", "newer")] == ["new", "new"]


def test_a_value_that_comes_while_it_is_computed_wins(cache: Cache, other: Cache) -> None:
    def meanwhile() -> str:
        other.get("a", make=lambda: "first")
        return "second"

    assert cache.get("a", make=meanwhile) == "first"


def test_this_process_reads_its_own_writes_at_once(cache: Cache) -> None:
    for n in range(300):
        cache.set("a", n)
        assert cache.get("a") == n
        assert cache.get("a") == n
        if n % 3 == 0:
            assert cache.delete("a") == 1
            assert cache.get("a", "gone") == "gone"
        if n % 5 == 0:
            cache.set("a", n, tags=["x"])
            assert cache.get("a") == n
            assert cache.delete_tag("x") == 1
            assert cache.get("a") is None
        if n % 7 == 0:
            cache.set("a", n)
            cache.get("a")
            assert cache.clear() == 1
            assert cache.get("a") is None


def test_other_processes_hear_of_every_kind_of_change(
    cache: Cache, other: Cache, client: redis.Redis, eventually: Callable[..., Any]
) -> None:
    changes: list[Callable[[], Any]] = [
        lambda: other.set("a", "new"),
        lambda: other.delete("a"),
        lambda: other.delete_tag("x"),
        other.clear,
        client.flushdb,
        client.flushall,
        lambda: client.delete(KEYS.cache("a")),
        lambda: client.pexpire(KEYS.cache("a"), 1),
        lambda: client.rename(KEYS.cache("a"), KEYS.cache("b")),
    ]
    for change in changes:
        other.set("a", "old", tags=["x"])
        eventually(lambda: cache.get("a") == "old")
        change()
        eventually(lambda: cache.get("a") != "old")
        other.clear()
        client.delete(KEYS.cache("b"))


def test_another_database_causes_no_more_than_misses(
    cache: Cache, other: Cache, server: Any, client: redis.Redis
) -> None:
    other.set("a", 1)
    assert cache.get("a") == 1
    with server.client(db=1) as elsewhere:
        elsewhere.set(KEYS.cache("a"), "alien")
        for _ in range(100):
            assert cache.get("a") == 1
        elsewhere.flushdb()
        assert cache.get("a") == 1


def test_a_value_ends_when_it_was_told_to(cache: Cache, other: Cache, eventually: Callable[..., Any]) -> None:
    other.set("b", 2)
    assert cache.get("b") == 2

    def seen() -> bool:
        """Again where the machine stood still for all of its life."""
        other.set("a", 1, ttl=timedelta(seconds=1.5))
        return bool(cache.get("a") == 1)

    eventually(seen)
    eventually(lambda: "a" not in cache._values)
    # A copy ends as much before the value as its read took to reach the server.
    eventually(lambda: cache.get("a") is None)
    assert "b" in cache._values


def test_nothing_is_kept_for_longer_than_the_age_allows(
    new_app: Callable[..., Headrace], url: str, other: Cache, eventually: Callable[..., Any]
) -> None:
    cache = new_app(url, cache_max_age=0.1).cache
    other.set("a", 1)
    assert cache.get("a") == 1
    eventually(lambda: cache.statistics().used == 0)
    assert cache.get("a") == 1


def test_tags_take_their_values_and_no_others(cache: Cache, other: Cache) -> None:
    for n in range(2500):
        cache.set(f"n{n}", n, tags=["x", "even" if n % 2 == 0 else "odd"])
    cache.set("other", 0, tags=["y"])
    assert other.get("n2") == 2
    assert other.delete_tag("even") == 1250
    assert other.get("n2") is None
    assert other.delete_tag("x") == 1250
    assert other.delete_tag("x") == 0
    assert other.get("other") == 0
    assert other.clear() == 1


def test_deleting_says_how_many_there_were(cache: Cache) -> None:
    cache.set("a", 1)
    cache.set("b", 1)
    assert cache.delete("a", "b", "c") == 2
    assert cache.delete() == 0
    assert cache.delete(*map(str, range(2500))) == 0


def test_nobody_can_change_what_others_read(cache: Cache) -> None:
    value = {"list": [1]}
    cache.set("a", value)
    value["list"].append(2)
    with pytest.raises(FrozenValue, match="copy"):
        cache.get("a")["list"].append(3)
    made = cache.get("b", make=lambda: value)
    with pytest.raises(FrozenValue):
        made["list"].append(3)
    value["list"].append(4)
    assert cache.get("a") == {"list": [1]}
    assert cache.get("b") == {"list": [1, 2]}


PLAIN = {
    "null": None, "truth": [True, False], "numbers": [0, -1, 2**63, 1.5, -0.0, float("inf")], "text": "ä\n", "bytes": b"\xff",
    "nested": {"list": [[], {}, {"a": [None]}]}, "keys": {1: "int", "1": "text", b"1": "bytes", None: "none"},
    "moment": datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
}  # fmt: skip


def typed(value: Any) -> Any:
    """A value with the types of all that is in it; frozen dicts and lists count as what they extend."""
    if isinstance(value, dict):
        return [(typed(key), typed(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return [typed(inner) for inner in value]
    return type(value), value


@pytest.mark.parametrize("value", PLAIN.values(), ids=PLAIN)
def test_what_comes_back_is_what_went_in(app: Headrace, other: Cache, client: redis.Redis, value: Any) -> None:
    """From the writer, from another process, from the local copy, from a function, and without any server to store."""
    cache = app.cache
    cache.set("a", value)
    ways = [
        cache.get("a"),
        cache.get("a"),
        other.get("a"),
        other.get("a"),
        cache.get("b", make=lambda: value),
        cache.get("b"),
    ]
    memory = client.config_get("maxmemory")["maxmemory"]  # type: ignore[index]
    client.config_set("maxmemory", 1)
    try:
        ways.append(cache.get("c", make=lambda: value))
    finally:
        client.config_set("maxmemory", memory)
    assert [typed(way) for way in ways] == [typed(value)] * 7
    again = cache.get("a")
    cache.set("a", again)
    assert typed(cache.get("a")) == typed(value), "what came from the cache may be stored again"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((1, 2), r"the value of 'a': tuple would come back as list"),
        ({"limits": [1, {"hosts": {"x"}}]}, r"at \['limits'\]\[1\]\['hosts'\]: set would come back as list"),
        ({"net": Decimal("1.10")}, r"at \['net'\]: Decimal would come back as str"),
        ([datetime(2026, 1, 1)],  # noqa: DTZ001 - one without a zone
         r"at \[0\]: datetime would come back as str"),
        ({(1, 2): [Point(1, [])]}, r"Point would come back as dict"),
        ({UUID(int=1): 1}, r"as a key: UUID would come back as str"),
        (bytearray(b"x"), r"bytearray would come back as bytes"),
    ],
)  # fmt: skip
def test_what_would_come_back_as_another_type_is_refused(cache: Cache, value: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text) as caught:
        cache.set("a", value)
    assert "store plain values" in str(caught.value)
    with pytest.raises(ArgumentError, match=text):
        cache.get("a", make=lambda: value)
    assert cache.get("a") is None


def test_a_coroutine_where_nobody_can_await_it_is_told_what_to_use(cache: Cache) -> None:
    make = Count()
    with pytest.raises(OptionsError, match=r"await cache\.aget"):
        cache.get("a", make=make.slowly)
    assert make.calls == 0
    for wrong in (3, make.slowly()):
        with pytest.raises(OptionsError, match="a function without arguments"):
            cache.get("a", make=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("", 1, OptionsError), (3, 1, OptionsError), (None, 1, OptionsError), ("x" * 513, 1, OptionsError),
        ("\ud800", 1, OptionsError), ("a", object(), ArgumentError), ("a", 1 << 70, ArgumentError),
        ("a", "x" * (5 << 20), PayloadTooLarge),
    ],
)  # fmt: skip
def test_what_cannot_be_stored_is_refused(cache: Cache, name: Any, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        cache.set(name, value)
    if error is OptionsError:
        for verb in (cache.get, cache.delete):
            with pytest.raises(error):
                verb(name)


@pytest.mark.parametrize("tags", ["x", ["a,b"], ["a\n"], [""], [str(n) for n in range(9)]])
def test_a_tag_is_a_name(cache: Cache, tags: Any) -> None:
    with pytest.raises(OptionsError):
        cache.set("a", 1, tags=tags)
    with pytest.raises(OptionsError):
        cache.get("a", make=Count(), tags=tags)


@pytest.mark.parametrize("ttl", [0, -1, "1", float("nan"), True])
def test_a_ttl_is_a_duration(cache: Cache, ttl: Any) -> None:
    with pytest.raises(OptionsError, match="ttl"):
        cache.set("a", 1, ttl=ttl)


@pytest.mark.parametrize("name", ["a:b", "ä", "日本", "with space", "{hr:0}:job:1", "a\nb", "x" * 512, "*"])
def test_a_name_is_any_text(cache: Cache, other: Cache, name: str, eventually: Callable[..., Any]) -> None:
    other.set(name, 1, tags=["x"])
    assert cache.get(name) == 1
    other.set(name, 2, tags=["x"])
    eventually(lambda: cache.get(name) == 2)
    assert other.delete_tag("x") == 1
    eventually(lambda: cache.get(name) is None)


@pytest.mark.mangles
def test_what_cannot_be_read_counts_as_absent(cache: Cache, client: redis.Redis) -> None:
    client.set(KEYS.cache("a"), b"\n\xc1alien")
    client.set(KEYS.cache("b"), b"")
    client.rpush(KEYS.cache("c"), "list")
    for name in "abc":
        assert cache.get(name, "default") == "default"
        make = Count(5)
        assert [cache.get(name, make=make) for _ in range(3)] == [5] * 3
        assert make.calls == 1
    assert cache.statistics().healthy


def test_both_bounds_hold(new_app: Callable[..., Headrace], url: str, other: Cache) -> None:
    cache = new_app(url, cache_entries=10, cache_bytes=64 << 10).cache
    for n in range(30):
        other.set(f"s{n}", n)
        assert cache.get(f"s{n}") == n
        other.set(f"l{n}", "x" * 9000)
        assert cache.get(f"l{n}") == "x" * 9000
        seen = cache.statistics()
        assert seen.used <= 10
        assert seen.bytes <= 64 << 10
    assert seen.evicted > 40
    assert (seen.capacity, seen.capacity_bytes) == (10, 64 << 10)
    other.set("huge", "x" * 50_000)
    assert cache.get("huge") == "x" * 50_000
    assert "huge" not in cache._values
    cache.reset_statistics()
    assert (cache.statistics().hits, cache.statistics().misses, cache.statistics().hit_ratio) == (0, 0, None)


def test_a_second_chance_keeps_what_is_read(new_app: Callable[..., Headrace], url: str, other: Cache) -> None:
    cache = new_app(url, cache_entries=4, cache_eviction="second_chance").cache
    other.set("hot", 1)
    for n in range(50):
        assert cache.get("hot") == 1
        cache.get(f"stranger {n}")
    assert cache.statistics().misses == 51


def test_refreshing_drops_copies_only(cache: Cache) -> None:
    cache.set("a", 1)
    cache.get("a")
    cache.refresh()
    assert cache.statistics().used == 0
    assert cache.get("a") == 1


def test_closing_ends_the_thread_and_using_starts_it_again(cache: Cache) -> None:
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "headrace-cache"]

    assert threads() == []
    cache.close()
    for _ in range(3):
        cache.set("a", 1)
        assert cache.get("a") == 1
        assert len(threads()) == 1
        assert cache.statistics().healthy
        cache.close()
        cache.close()
        assert threads() == []
        assert cache.statistics().used == 0


async def test_coroutines_have_the_same_verbs(app: Headrace, other: Cache) -> None:
    cache, make = app.cache, Count(3)
    assert await cache.aget("a", make=make.slowly, ttl=60, tags=["x"]) == 3
    assert await cache.aget("a", make=make) == 3
    assert make.calls == 1
    await cache.aset("b", {"x": 1}, tags=["x"])
    assert await cache.aget("b") == cache.get("b") == {"x": 1}
    assert await cache.adelete("a") == 1
    assert await cache.aget("a", "gone") == "gone"
    assert await cache.adelete_tag("x") == 1
    await cache.aset("c", 1)
    assert await cache.aclear() == 1
    other.set("d", 1)
    assert await cache.aget("d") == 1
    other.set("d", 2)
    for _ in range(4000):
        if await cache.aget("d") == 2:
            break
        await asyncio.sleep(0.005)
    assert await cache.aget("d") == 2
    await app.aclose()


async def test_a_cancelled_reader_leaves_nothing_behind(app: Headrace, other: Cache) -> None:
    cache = app.cache
    await cache.aget("warm")
    for n in range(50):
        other.set(f"n{n}", n)
        task = asyncio.create_task(cache.aget(f"n{n}"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert cache._listener._pending == {}
    assert [await cache.aget(f"n{n}") for n in range(50)] == [*range(50)]
    await app.aclose()


def test_threads_and_several_event_loops_share_one_cache(app: Headrace, other: Cache) -> None:
    cache = app.cache
    other.set("a", 1)

    async def read() -> None:
        for n in range(50):
            assert await cache.aget("a") == 1
            assert await cache.aget(f"absent {n}") is None

    def without() -> None:
        for n in range(50):
            assert cache.get("a") == 1
            assert cache.get(f"absent {n}") is None
            cache.set(f"mine {threading.get_ident()}", n)

    with ThreadPoolExecutor(8) as pool:
        for one in [pool.submit(work) for work in (lambda: asyncio.run(read()), without) * 4]:
            one.result(30)


def test_each_verb_has_its_pair() -> None:
    verbs = {name for name in vars(Cache) if not name.startswith("_")}
    pairs = {name[1:] for name in verbs if name.startswith("a") and name[1:] in verbs}
    # The others send nothing, so there is nothing to wait for.
    assert verbs - pairs - {f"a{name}" for name in pairs} == {
        "begin_anew",
        "follow",
        "close",
        "peek",
        "refresh",
        "reset_statistics",
        "statistics",
    }


def test_plain_keys_and_cached_values_never_meet(cache: Cache, app: Headrace) -> None:
    """A cached value named like one of the engine's keys is another key."""
    cache.set("queues", 1)
    cache.set("job:1", 1)
    assert app.overview().queues == []
    assert cache.clear() == 2


def test_threads_that_race_for_the_first_use_have_one_cache(app: Headrace) -> None:
    """Python 3.11 keeps the second out by a lock, and newer ones make another."""
    made = vars(Headrace)["cache"].func
    assert made(app) is made(app) is app.cache
