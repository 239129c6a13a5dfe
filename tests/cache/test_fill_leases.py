"""Many readers of one absent value: one of a process computes it, and of all processes as many as asked not to wait."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace import Headrace
from headrace.cache import Cache
from headrace.protocol import cache_calls as protocol
from headrace.protocol.keys import Keys
from tests.cache.listener_program import Told
from tests.deadline import eventually

KEYS = Keys()


class Slow:
    """A function that returns, or raises, when it is told to; it counts its calls."""

    def __init__(self, value: Any = "made") -> None:
        self.value = value
        self.calls = 0
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def __call__(self) -> Any:
        self.calls += 1
        self.begun.release()
        assert self.go.acquire(timeout=20)
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value

    async def slowly(self) -> Any:
        return await asyncio.to_thread(self)

    def starts(self) -> None:
        assert self.begun.acquire(timeout=20)


@pytest.fixture
def waiters(cache: Cache) -> Callable[[int], None]:
    """Wait until so many readers wait for a computation."""

    def waiting(count: int) -> None:
        eventually(
            lambda: sum(len(c.ended._callbacks) for c in list(cache._steps._fills._current.values())) == count, 20
        )

    return waiting


Waiters = Callable[[int], None]


def test_threads_and_coroutines_get_what_one_of_them_computes(cache: Cache, waiters: Waiters) -> None:
    make = Slow({"n": [1]})

    async def several() -> list[Any]:
        return await asyncio.gather(*(cache.aget("a", make=make.slowly) for _ in range(10)))

    with ThreadPoolExecutor(22) as pool:
        first = pool.submit(cache.get, "a", make=make)
        make.starts()
        calls = [pool.submit(cache.get, "a", make=make) for _ in range(20)]
        loop = pool.submit(asyncio.run, several())
        waiters(30)
        make.go.release()
        found = [first.result(20), *(call.result(20) for call in calls), *loop.result(20)]
    assert found == [{"n": [1]}] * 31
    assert make.calls == 1


def test_a_failure_is_given_to_those_who_waited_and_to_nobody_after(
    cache: Cache, waiters: Waiters, client: redis.Redis
) -> None:
    make = Slow(LookupError("no row"))
    with ThreadPoolExecutor(9) as pool:
        calls = [pool.submit(cache.get, "a", make=make)]
        make.starts()
        calls += [pool.submit(cache.get, "a", make=make) for _ in range(8)]
        waiters(8)
        make.go.release()
        assert {str(call.exception(20)) for call in calls} == {"no row"}
    assert make.calls == 1
    assert not client.exists(KEYS("filling:a")), "a failure leaves no lease"
    assert cache.get("a", make=lambda: 5) == 5


@pytest.mark.parametrize("how", ["cancelled", "interrupted"])
def test_the_next_computes_when_the_first_one_is_interrupted(cache: Cache, waiters: Waiters, how: str) -> None:
    class Interrupted(BaseException):
        pass

    first, second = Slow(Interrupted()), Slow("by the next")

    async def cancelled() -> None:
        task = asyncio.create_task(cache.aget("a", make=lambda: asyncio.sleep(60)))
        await asyncio.to_thread(waiters, 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with ThreadPoolExecutor(3) as pool:
        one: Future[Any] = pool.submit(asyncio.run, cancelled()) if how == "cancelled" else pool.submit(cache.get, "a", make=first)  # fmt: skip
        eventually(lambda: "a" in cache._steps._fills._current, 20)
        others = [pool.submit(cache.get, "a", make=second) for _ in range(2)]
        if how == "interrupted":
            waiters(2)
            first.go.release()
        second.starts()
        second.go.release()
        assert [other.result(20) for other in others] == ["by the next"] * 2
        assert isinstance(one.exception(20), Interrupted if how == "interrupted" else type(None))
    assert second.calls == 1


def test_a_coroutine_that_waits_and_is_cancelled_ends_alone(cache: Cache, waiters: Waiters) -> None:
    make = Slow()

    async def both() -> Any:
        leader = asyncio.create_task(cache.aget("a", make=make.slowly))
        await asyncio.to_thread(make.starts)
        waiter = asyncio.create_task(cache.aget("a", make=make.slowly))
        await asyncio.to_thread(waiters, 1)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        make.go.release()
        return await leader

    assert asyncio.run(both()) == "made"
    assert make.calls == 1
    assert cache.get("a") == "made"


def test_who_reads_within_a_computation_what_waits_for_it_computes_it_beside(cache: Cache) -> None:
    def recursive(depth: int) -> int:
        return 1 if depth == 0 else 1 + cache.get("a", make=lambda: recursive(depth - 1))

    assert cache.get("a", make=lambda: recursive(3)) in (1, 4)

    met = threading.Barrier(2)

    def one(other: str) -> Callable[[], str]:
        def make() -> str:
            met.wait(20)
            return other + cache.get(other, make=lambda: "beside")

        return make

    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(cache.get, name, make=one(other)) for name, other in (("x", "y"), ("y", "x"))]
        assert all(call.result(20) for call in calls)

    async def crossed() -> list[str]:
        ready = [asyncio.Event(), asyncio.Event()]

        async def make(n: int) -> str:
            ready[n].set()
            await ready[1 - n].wait()
            # The edge lies in a task of its own.
            return f"{n}" + (await asyncio.gather(cache.aget(f"t{1 - n}", make=lambda: "beside")))[0]

        return await asyncio.gather(*(cache.aget(f"t{n}", make=lambda n=n: make(n)) for n in (0, 1)))

    assert all(asyncio.run(asyncio.wait_for(crossed(), 20)))


def test_readers_within_computations_share_what_they_all_need(cache: Cache, waiters: Waiters) -> None:
    make = Slow()
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(cache.get, f"page {n}", make=lambda: cache.get("user", make=make)) for n in range(4)]
        make.starts()
        waiters(3)
        make.go.release()
        assert [call.result(20) for call in calls] == ["made"] * 4
    assert make.calls == 1


def test_an_event_loop_is_not_held_up_by_what_it_must_run(cache: Cache) -> None:
    async def blocks() -> tuple[Any, Any]:
        going = asyncio.Event()

        async def make() -> str:
            going.set()
            await asyncio.sleep(0.01)
            return "by the coroutine"

        leader = asyncio.create_task(cache.aget("a", make=make))
        await going.wait()
        return cache.get("a", make=lambda: "beside"), await leader

    beside, found = asyncio.run(asyncio.wait_for(blocks(), 20))
    assert beside == "beside"
    assert found in ("beside", "by the coroutine")


@pytest.mark.parametrize("change", ["here", "elsewhere"])
@pytest.mark.parametrize("verb", ["delete", "tag", "clear"])
def test_nobody_joins_a_computation_that_began_before_a_change(
    cache: Cache, other: Cache, waiters: Waiters, change: str, verb: str
) -> None:
    """The guarantee of a deletion holds for those who wait: what was computed before it is not given to them."""
    old, new = Slow("old"), Slow("new")
    changer = cache if change == "here" else other
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(cache.get, "a", make=old, tags=["x"])
        old.starts()
        {"delete": lambda: changer.delete("a"), "tag": lambda: changer.delete_tag("x"), "clear": changer.clear}[verb]()
        later = [pool.submit(cache.get, "a", make=new, tags=["x"]) for _ in range(3)]
        if change == "elsewhere":
            waiters(3)
        else:
            new.starts()
        old.go.release()
        assert first.result(20) == "old", "who began before the change gets what it computed"
        if change == "elsewhere":
            new.starts()
        new.go.release(3)
        assert [call.result(20) for call in later] == ["new"] * 3
    assert new.calls == 1
    assert other.get("a") == "new"


def test_a_forked_child_does_not_wait_for_its_parents_threads(cache: Cache) -> None:
    make = Slow()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(cache.get, "a", make=make)
        make.starts()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                code = 0 if cache.get("a", make=lambda: "child") == "child" else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        make.go.release()
        assert call.result(20) in ("made", "child")


class Readers:
    """Programs that read one name with many threads each."""

    def __init__(self, url: str, wait: float, count: int, threads: int, directory: Path) -> None:
        self.all = [Told("tests.cache.reader_program", directory / str(n), url, wait, threads) for n in range(count)]
        for program in self.all:
            assert program.line() == "ready"

    def go(self, *programs: int) -> None:
        for n in programs:
            self.say(n, "go")

    def say(self, n: int, word: str) -> None:
        self.all[n].tell(word)

    def end(self) -> None:
        for program in self.all:
            program.end(kill=True)


@pytest.fixture
def readers(url: str, tmp_path: Path) -> Any:
    made: list[Readers] = []

    def start(wait: float, count: int, threads: int) -> Readers:
        made.append(Readers(url, wait, count, threads, tmp_path))
        return made[-1]

    yield start
    for one in made:
        one.end()


def test_each_process_computes_once(readers: Callable[..., Readers]) -> None:
    some = readers(0, 3, 20)
    some.go(0, 1, 2)
    for program in some.all:
        assert program.line() == "begun"
    for n in range(3):
        some.say(n, "value")
    results = [json.loads(program.line()) for program in some.all]
    assert results == [[1, ["value"] * 20]] * 3


def test_with_wait_one_process_computes_and_the_others_hear_of_it(
    readers: Callable[..., Readers], client: redis.Redis
) -> None:
    some = readers(600, 3, 20)
    some.go(0)
    assert some.all[0].line() == "begun"
    some.go(1, 2)
    some.say(0, "value")
    results = [json.loads(program.line()) for program in some.all]
    assert [made for made, _ in results] == [1, 0, 0]
    assert [found for _, found in results] == [["value"] * 20] * 3


def test_a_process_whose_function_failed_is_not_waited_for(
    readers: Callable[..., Readers], client: redis.Redis
) -> None:
    some = readers(600, 2, 5)
    some.go(0)
    assert some.all[0].line() == "begun"
    some.go(1)
    some.say(0, "fail")
    assert json.loads(some.all[0].line()) == [1, ["no row"] * 5]
    assert some.all[1].line() == "begun", "at once, not after ten minutes"
    some.say(1, "value")
    assert json.loads(some.all[1].line()) == [1, ["value"] * 5]


def test_a_process_that_is_killed_is_waited_for_no_longer_than_asked(
    readers: Callable[..., Readers], client: redis.Redis
) -> None:
    some = readers(1.5, 2, 5)
    some.go(0)
    assert some.all[0].line() == "begun"
    some.all[0].process.send_signal(signal.SIGKILL)
    some.go(1)
    assert some.all[1].line() == "begun"
    some.say(1, "value")
    assert json.loads(some.all[1].line()) == [1, ["value"] * 5]
    assert not client.exists(KEYS("filling:a"))


def test_waiting_needs_no_announcements(
    new_app: Callable[..., Headrace], url: str, other: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is kept, changes are looked for."""
    cache = new_app(url).cache
    monkeypatch.setattr(cache._listener, "start", lambda _landed: False)
    make = Slow()
    with ThreadPoolExecutor(2) as pool:
        call = pool.submit(other.get, "a", make=make)
        make.starts()
        waiting = pool.submit(cache.get, "a", make=lambda: "beside", wait=600)
        assert not wait([waiting], 0.05).done
        make.go.release()
        assert call.result(20) == waiting.result(20) == "made"


@pytest.mark.mangles
def test_a_value_that_cannot_be_read_is_replaced_by_one_that_waits(cache: Cache, client: redis.Redis) -> None:
    client.set(KEYS.cache("a"), b"\n\xc1alien")
    assert cache.get("a", make=lambda: 5, wait=600) == 5
    assert cache.get("a") == 5


@pytest.mark.parametrize("wrong", [-1, "5", float("nan"), True])
def test_the_time_to_wait_is_a_duration(cache: Cache, wrong: Any) -> None:
    with pytest.raises(ValueError, match="wait"):
        cache.get("a", make=lambda: 1, wait=wrong)


def test_a_cached_function_waits_as_well(app: Headrace, other: Cache, client: redis.Redis, tmp_path: Path) -> None:
    make = Slow(7)

    @app.cached(wait=600)
    def answer() -> int:
        return int(make())

    name = answer.name_of()
    lease = app.client.run(protocol.lease(KEYS, name)).lease
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(answer)
        assert not wait([call], 0.05).done
        app.client.run(protocol.release(KEYS, name, lease))
        make.starts()
        make.go.release()
        assert call.result(20) == 7
