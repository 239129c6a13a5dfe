"""What a caller can ask of a pool, of both kinds: P04, P05, P10 to P19, P31, P39, P40, PS7, PS9, PS12 to PS15."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from freezegun import freeze_time

from headrace import Pool
from headrace.errors import (
    ArgumentError,
    ClosedError,
    MemberDied,
    OptionsError,
    PoolFull,
    WaitTimeout,
)
from headrace.pool import Replies, Snapshot
from tests.deadline import eventually
from tests.pool import chores
from tests.pool.conftest import Blocks

Make = Callable[..., Pool]


def test_a_pool_is_an_executor(make: Make, kind: str) -> None:
    pool = make(2, kind=kind)
    assert isinstance(pool, concurrent.futures.Executor)
    assert pool.submit(chores.double, 4).result(20) == 8
    assert list(pool.map(chores.double, range(5))) == [0, 2, 4, 6, 8]
    done = concurrent.futures.wait([pool.submit(chores.double, n) for n in range(5)], 20).done
    assert sorted(future.result() for future in done) == [0, 2, 4, 6, 8]
    seen = [future.result() for future in concurrent.futures.as_completed([pool.submit(chores.double, 1)], 20)]
    assert seen == [2]


async def test_asyncio_uses_it_as_any_executor(make: Make) -> None:
    assert await asyncio.get_running_loop().run_in_executor(make(1), chores.double, 3) == 6


def test_an_error_travels_with_where_it_was_raised(make: Make, kind: str) -> None:
    with pytest.raises(ValueError, match="no such colour") as caught:
        make(1, kind=kind).call(chores.fail, "no such colour")
    if kind == "process":
        assert "chores.py" in str(caught.value.__cause__)


def test_an_exit_in_a_call_is_the_callers_error_and_the_member_lives(make: Make, kind: str) -> None:
    pool = make(1, kind=kind)
    with pytest.raises(SystemExit):
        pool.call(chores.leave)
    assert pool.call(chores.double, 1) == 2
    assert pool.stats().members[0].restarts == 0


def test_what_cannot_be_called_is_refused_at_the_call(make: Make, kind: str) -> None:
    with pytest.raises(ArgumentError, match="cannot be called"):
        make(1, kind=kind).submit("chores")  # type: ignore[arg-type]


def test_what_cannot_travel_is_a_typed_error_on_either_way(make: Make) -> None:
    pool = make(1, kind="process")
    with pytest.raises(ArgumentError, match="top of a module"):
        pool.submit(lambda: None)
    with pytest.raises(ArgumentError, match="plain values"):
        pool.call(chores.unpicklable)
    with pytest.raises(ArgumentError, match="Awkward"):
        pool.call(chores.raise_awkward)
    assert pool.call(chores.double, 1) == 2


def test_large_arguments_and_results_pass(make: Make) -> None:
    pool, data = make(2, kind="process"), os.urandom(5 << 20)
    calls = [pool.submit(chores.echo, data) for _ in range(4)]
    assert all(call.result(30) == data for call in calls)


def test_large_arguments_pass_where_no_thread_can_be_started(
    make: Make, up: Callable[[Pool], Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first part of the call was sent, so that the member waited for the rest for ever."""

    def none(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    pool = up(make(1, kind="process"))
    monkeypatch.setattr("headrace.pool.processes.start_new_thread", none)
    assert pool.call(len, bytes(20_000_000), timeout=60) == 20_000_000
    assert pool.call(chores.double, 1, timeout=60) == 2


def test_arguments_are_those_of_the_moment_of_the_call(make: Make, blocks: Blocks) -> None:
    pool, argument = make(1, kind="process"), [1]
    _, release = blocks.hold(pool)
    call = pool.submit(len, argument)
    argument.append(2)
    release.touch()
    assert call.result(20) == 1


# -- available: P04, P10, P11 ----------------------------------------------------------------------------------------


def test_available_lets_a_call_wait_for_whoever_is_free(make: Make, kind: str, blocks: Blocks) -> None:
    pool = make(2, kind=kind)
    (_, first), (_, second) = blocks.hold(pool), blocks.hold(pool)
    call = pool.submit(chores.double, 2)
    assert (pool.stats().central, call.running()) == (1, False)
    first.touch()
    assert call.result(20) == 4
    second.touch()


@pytest.mark.parametrize("strategy", ["available", "round_robin", "least_loaded", "random", "next_available"])
def test_a_call_without_time_never_runs(make: Make, kind: str, tmp_path: Path, strategy: str) -> None:
    pool = make(1, kind=kind)
    with pytest.raises(WaitTimeout, match="never runs"):
        pool.call(chores.note, tmp_path / "notes", "x", strategy=strategy, timeout=0)
    pool.shutdown()
    assert not (tmp_path / "notes").exists()


@pytest.mark.parametrize("strategy", ["available", "round_robin"])
def test_a_call_that_timed_out_while_it_waited_never_runs(
    make: Make, kind: str, blocks: Blocks, tmp_path: Path, strategy: str
) -> None:
    pool = make(1, kind=kind)
    _, release = blocks.hold(pool)
    with pytest.raises(WaitTimeout, match="had not begun, and never runs"):
        pool.call(chores.note, tmp_path / "notes", "x", strategy=strategy, timeout=0.05)
    assert pool.stats().waiting == 0, "an expired call is not counted (PS14)"
    release.touch()
    pool.shutdown()
    assert not (tmp_path / "notes").exists()


def test_the_time_of_a_call_covers_its_running(make: Make, kind: str, blocks: Blocks, tmp_path: Path) -> None:
    pool = make(1, kind=kind)
    pool.call(chores.double, 1)
    release = tmp_path / "free"
    with pytest.raises(WaitTimeout, match="runs on"):
        pool.call(chores.block, tmp_path / "on", release, timeout=2)
    release.touch()
    assert pool.call(chores.double, 1, timeout=20) == 2


def test_a_time_out_that_the_function_raises_is_its_own(make: Make) -> None:
    def raises() -> None:
        raise TimeoutError("the printer")

    with pytest.raises(TimeoutError, match="the printer") as caught:
        make(1).call(raises, timeout=20)
    assert not isinstance(caught.value, WaitTimeout)


@pytest.mark.parametrize("strategy", ["available", "least_loaded"])
def test_a_submitted_call_that_nobody_began_in_time_fails_and_never_runs(
    make: Make, kind: str, blocks: Blocks, tmp_path: Path, strategy: str
) -> None:
    pool = make(1, kind=kind)
    _, release = blocks.hold(pool, timeout=20)
    call = pool.submit(chores.note, tmp_path / "notes", "x", timeout=0.05, strategy=strategy)
    with pytest.raises(WaitTimeout, match=r"no member began tests\.pool\.chores\.note"):
        call.result(20)
    assert pool.stats().waiting == 0
    release.touch()
    pool.shutdown()
    assert not (tmp_path / "notes").exists()


def test_the_time_of_a_submitted_call_ends_with_its_beginning(
    make: Make, blocks: Blocks, up: Callable[[Pool], Pool]
) -> None:
    pool = up(make(1))
    first, release = blocks.hold(pool, timeout=3)
    with pytest.raises(WaitTimeout):
        pool.submit(chores.double, 1, timeout=3.1).result(20)
    release.touch()
    assert first.result(20) == "released"


def test_ended_calls_are_not_kept_until_their_deadlines(make: Make) -> None:
    pool = make(1)
    for _ in range(300):
        pool.submit(chores.double, 1, timeout=3600).result(20)
    assert len(pool._crew.watch._due) < 200


def test_a_cancelled_call_never_runs_and_frees_its_place(make: Make, kind: str, blocks: Blocks, tmp_path: Path) -> None:
    pool = make(1, kind=kind, backlog=1)
    _, release = blocks.hold(pool)
    call = pool.submit(chores.note, tmp_path / "notes", "x")
    assert call.cancel()
    assert call.cancel(), "again is fine"
    assert concurrent.futures.wait([call], 20).done == {call}
    again = pool.submit(chores.double, 3)
    release.touch()
    assert again.result(20) == 6
    assert not (tmp_path / "notes").exists()


def test_an_interrupted_waiter_leaves_no_work_behind(make: Make, blocks: Blocks, tmp_path: Path) -> None:
    """PS2: the caller that waited is gone, so nothing begins for it."""
    pool = make(1)
    _, release = blocks.hold(pool)

    class Interrupted(BaseException):
        pass

    def result(self: Any, timeout: float | None = None) -> Any:
        raise Interrupted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(concurrent.futures.Future, "result", result)
        with pytest.raises(Interrupted):
            pool.call(chores.note, tmp_path / "notes", "x")
    assert pool.stats().waiting == 0
    release.touch()
    pool.shutdown()
    assert not (tmp_path / "notes").exists()


def test_a_cast_is_run_and_its_error_is_logged(
    make: Make, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = make(1, kind=kind)
    with caplog.at_level(logging.WARNING, "headrace.pool"):
        pool.cast(chores.fail, "not heard")
        pool.cast(chores.note, tmp_path / "notes", "heard")
        pool.shutdown()
    assert (tmp_path / "notes").read_text() == "heard\n"
    assert "a cast of tests.pool.chores.fail failed" in caplog.text


# -- next_available: P05 ---------------------------------------------------------------------------------------------


def test_next_available_refuses_when_nobody_is_free(
    make: Make, kind: str, blocks: Blocks, up: Callable[[Pool], Pool]
) -> None:
    pool = up(make(2, kind=kind, strategy="next_available"))
    (_, one), (_, two) = blocks.hold(pool), blocks.hold(pool)
    with pytest.raises(PoolFull, match="all 2 members are busy"):
        pool.call(chores.double, 1)
    one.touch()
    two.touch()


def test_who_has_an_answer_may_count_on_the_member(make: Make, kind: str, up: Callable[[Pool], Pool]) -> None:
    pool = up(make(1, kind=kind))
    for number in range(200):
        assert pool.call(chores.double, number, strategy="next_available") == 2 * number


def test_two_callers_never_get_the_same_free_member(make: Make, up: Callable[[Pool], Pool]) -> None:
    """P05 is racy where it was learned; here the choice is part of the booking."""
    pool, together, most = up(make(4)), 0, 0
    lock = threading.Lock()

    def count() -> None:
        nonlocal together, most
        with lock:
            together += 1
            most = max(most, together)
        time.sleep(0.0005)
        with lock:
            together -= 1

    refused = 0

    def caller() -> None:
        nonlocal refused
        for _ in range(100):
            try:
                call = pool.submit(count, strategy="next_available")
                assert call.running() or call.done() or pool.stats().central == 0
            except PoolFull:
                refused += 1

    callers = [threading.Thread(target=caller) for _ in range(8)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(20)
    assert refused
    assert pool.stats().waiting == 0, "never behind another call"
    assert most <= 4


# -- the others: P01, P02, P03, P06, P07 -------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["least_loaded", "random", "round_robin"])
def test_these_never_refuse_and_may_wait_behind_a_slow_call(
    make: Make, kind: str, blocks: Blocks, up: Callable[[Pool], Pool], strategy: str
) -> None:
    pool = up(make(1, kind=kind, strategy=strategy))
    _, release = blocks.hold(pool)
    calls = [pool.submit(chores.double, n) for n in range(3)]
    stats = pool.stats()
    assert (stats.members[0].waiting, stats.central) == (3, 0)
    release.touch()
    assert [call.result(20) for call in calls] == [0, 2, 4]


def test_least_loaded_goes_round_a_slow_member(
    make: Make, kind: str, blocks: Blocks, up: Callable[[Pool], Pool]
) -> None:
    pool = up(make(2, kind=kind, strategy="least_loaded"))
    _, release = blocks.hold(pool)
    assert [pool.call(chores.double, n, timeout=20) for n in range(10)] == [2 * n for n in range(10)]
    release.touch()


def test_round_robin_deals_evenly(make: Make, kind: str, up: Callable[[Pool], Pool]) -> None:
    pool = up(make(3, kind=kind))
    for call in [pool.submit(chores.double, n, strategy="round_robin") for n in range(30)]:
        call.result(20)
    assert [member.done for member in pool.stats().members] == [10, 10, 10]


def test_calls_of_a_key_run_in_order_on_one_member(make: Make, kind: str, tmp_path: Path) -> None:
    pool, path = make(4, kind=kind), tmp_path / "notes"
    for number in range(200):
        pool.cast(chores.note, path, f"{number % 7} {number}", key=f"customer-{number % 7}")
    members = {
        key: {pool.call(chores.me, strategy="hash", key=f"customer-{key}") for _ in range(3)} for key in range(7)
    }
    pool.shutdown()
    assert all(len(places) == 1 for places in members.values())
    seen: dict[str, list[int]] = {}
    for line in path.read_text().splitlines():
        key, number = line.split()
        seen.setdefault(key, []).append(int(number))
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert sum(map(len, seen.values())) == 200


def test_a_function_of_ones_own_chooses(make: Make, up: Callable[[Pool], Pool]) -> None:
    pool = up(make(3))

    def second(snapshot: Snapshot[Any], key: object) -> Any:
        assert (snapshot.size, key) == (3, None)
        snapshot.turn()
        return snapshot.members[1]

    calls = [pool.submit(chores.double, 1, strategy=second) for _ in range(5)]
    assert {call.result(20) for call in calls} == {2}
    assert pool.stats().members[1].done == 5
    assert pool.submit(chores.double, 1, strategy=lambda *_: None).result(20) == 2, "None: the central queue"


def test_a_strategy_that_raises_costs_nothing(make: Make) -> None:
    pool = make(1)

    def broken(*_: object) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pool.submit(chores.double, 1, strategy=broken)
    assert (pool.stats().waiting, pool.call(chores.double, 1)) == (0, 2)


def test_a_key_that_is_none_is_refused_at_the_call(make: Make) -> None:
    pool = make(1)
    with pytest.raises(OptionsError, match="needs key="):
        pool.submit(chores.double, 1, strategy="hash")
    with pytest.raises(OptionsError, match="text, bytes or an integer"):
        pool.submit(chores.double, 1, key=1.5)  # type: ignore[arg-type]


# -- broadcasts: P14, P15 --------------------------------------------------------------------------------------------


def test_a_broadcast_reaches_everybody_before_what_waits(
    make: Make, kind: str, blocks: Blocks, tmp_path: Path, up: Callable[[Pool], Pool]
) -> None:
    pool, path = up(make(2, kind=kind)), tmp_path / "notes"
    releases = [blocks.hold(pool)[1] for _ in range(2)]
    for number in range(4):
        pool.cast(chores.note, path, str(number))
    assert pool.broadcast(chores.note, path, "all") == 2
    for release in releases:
        release.touch()
    pool.shutdown()
    lines = path.read_text().splitlines()
    assert sorted(lines) == ["0", "1", "2", "3", "all", "all"]
    assert lines[0] == "all"


def test_a_broadcall_collects_answers_and_errors(make: Make, kind: str) -> None:
    pool = make(3, kind=kind)
    values, errors = pool.broadcall(chores.me)
    assert sorted(values) == [0, 1, 2]
    assert len(set(values.values())) == 3
    assert errors == {}
    replies: Replies[None] = pool.broadcall(chores.fail, "all of us", timeout=20)
    assert replies.values == {}
    assert {str(error) for error in replies.errors.values()} == {"all of us"}


def test_one_late_answer_fails_the_whole_broadcall_and_what_waits_never_runs(
    make: Make, kind: str, blocks: Blocks, tmp_path: Path, up: Callable[[Pool], Pool]
) -> None:
    pool = up(make(2, kind=kind))
    _, release = blocks.hold(pool)
    with pytest.raises(WaitTimeout):
        pool.broadcall(chores.note, tmp_path / "notes", "x", timeout=2)
    release.touch()
    pool.shutdown()
    assert (tmp_path / "notes").read_text() == "x\n"


# -- map -------------------------------------------------------------------------------------------------------------


def test_map_in_chunks_keeps_the_order(make: Make, kind: str) -> None:
    assert list(make(2, kind=kind).map(pow, range(10), [2] * 10, chunksize=3)) == [n * n for n in range(10)]


def test_map_of_more_than_may_wait_submits_as_it_is_read(make: Make) -> None:
    pool, read = make(2, backlog=4), 0

    def numbers() -> Any:
        nonlocal read
        while read < 1000:
            yield read
            read += 1

    results = pool.map(chores.double, numbers())
    assert read < 10
    assert sum(results) == 2 * sum(range(1000))


def test_map_in_a_pool_where_nothing_may_wait_submits_one_call_after_the_other(make: Make, kind: str) -> None:
    assert list(make(2, kind=kind, backlog=0).map(pow, range(20), [2] * 20)) == [n * n for n in range(20)]


def test_a_map_that_runs_out_of_time_cancels_the_rest(make: Make, blocks: Blocks, tmp_path: Path) -> None:
    pool = make(1)
    _, release = blocks.hold(pool)
    results = pool.map(functools.partial(chores.note, tmp_path / "notes"), "abc", timeout=0.05)
    with pytest.raises(TimeoutError):
        next(results)
    release.touch()
    pool.shutdown()
    assert not (tmp_path / "notes").exists()


# -- the line: P39, P40, PS13 to PS15 ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("queue", "order"), [("fifo", "abcd"), ("lifo", "dcba")])
def test_the_central_line_is_first_or_last_in_first_out(
    make: Make, kind: str, blocks: Blocks, tmp_path: Path, queue: str, order: str
) -> None:
    pool, path = make(1, kind=kind, queue=queue), tmp_path / "notes"
    _, release = blocks.hold(pool)
    for letter in "abcd":
        pool.cast(chores.note, path, letter)
    release.touch()
    pool.shutdown()
    assert path.read_text().split() == list(order)


def test_a_call_that_younger_ones_overtake_is_told_of_and_expires(
    make: Make, kind: str, blocks: Blocks, tmp_path: Path
) -> None:
    """PS15: last in, first out starves the old ones."""
    pool, path = make(1, kind=kind, queue="lifo"), tmp_path / "notes"
    _, release = blocks.hold(pool)
    old = pool.submit(chores.note, path, "old")
    eventually(lambda: pool.stats().oldest > 0.05)
    hasty = pool.submit(chores.note, path, "hasty", timeout=0.05)
    young = pool.submit(chores.note, path, "young")
    assert pool.stats().oldest > 0.05
    with pytest.raises(WaitTimeout, match="no member began"):
        hasty.result(20)
    assert pool.stats().central == 2
    release.touch()
    young.result(20)
    old.result(20)
    assert path.read_text().split() == ["young", "old"]


def test_the_backlog_is_bounded_and_counted(make: Make, kind: str, blocks: Blocks, up: Callable[[Pool], Pool]) -> None:
    pool = up(make(1, kind=kind, backlog=2))
    _, release = blocks.hold(pool)
    first, second = pool.submit(chores.double, 1), pool.submit(chores.double, 2, strategy="round_robin")
    for strategy, key in (("available", None), ("least_loaded", None), ("hash", "k")):
        with pytest.raises(PoolFull, match="2 calls wait already"):
            pool.submit(chores.double, 3, strategy=strategy, key=key)
    stats = pool.stats()
    assert (stats.waiting, stats.central, stats.backlog) == (2, 1, 2)
    assert stats.oldest > 0
    release.touch()
    assert (first.result(20), second.result(20)) == (2, 4)
    assert pool.call(chores.double, 3, key="k") == 6


def test_without_a_backlog_only_free_members_accept(
    make: Make, kind: str, blocks: Blocks, up: Callable[[Pool], Pool]
) -> None:
    pool = up(make(1, kind=kind, backlog=0))
    assert pool.call(chores.double, 1) == 2
    _, release = blocks.hold(pool)
    with pytest.raises(PoolFull):
        pool.submit(chores.double, 1)
    assert pool.stats().waiting == 0
    release.touch()


# -- members ---------------------------------------------------------------------------------------------------------


def test_each_member_is_set_up_first(make: Make, kind: str) -> None:
    pool = make(2, kind=kind, initializer=chores.set_up, initargs=("ready",))
    assert set(pool.broadcall(chores.recall).values.values()) == {"ready"}


def test_statistics_say_what_runs_where_and_for_how_long(
    make: Make, kind: str, blocks: Blocks, up: Callable[[Pool], Pool]
) -> None:
    pool = up(make(2, kind=kind, name="kitchen"))
    pool.call(chores.double, 1)
    _, release = blocks.hold(pool)
    stats = pool.stats()
    busy = next(member for member in stats.members if member.state == "busy")
    assert (stats.name, stats.kind, stats.strategy, stats.size, stats.done) == ("kitchen", kind, "available", 2, 1)
    assert busy.call == "tests.pool.chores.block"
    assert busy.seconds > 0
    if kind == "thread":
        # It is at times in what its loop calls.
        eventually(lambda: any("chores.py" in member.where for member in pool.stats().members))
        assert busy.pid == os.getpid()
    else:
        assert busy.pid != os.getpid()
        assert busy.memory is None or busy.memory > 1 << 20
    assert [member.id for member in pool.snapshot.members] == [0, 1]
    release.touch()


def test_a_late_answer_leaves_the_member_free(make: Make, kind: str, tmp_path: Path) -> None:
    pool = make(1, kind=kind)
    started, release = tmp_path / "on", tmp_path / "free"
    call = pool.submit(chores.answer_later, "at last", started, release)
    eventually(started.exists, 20)
    assert pool.call(chores.double, 1, timeout=20) == 2
    assert not call.done()
    release.touch()
    assert call.result(20) == "at last"


def test_a_process_waits_for_its_late_answers_before_it_leaves(make: Make, tmp_path: Path) -> None:
    pool = make(1, kind="process")
    started, release = tmp_path / "on", tmp_path / "free"
    call = pool.submit(chores.answer_later, "at last", started, release)
    eventually(started.exists, 20)
    pool.shutdown(wait=False)
    release.touch()
    assert call.result(20) == "at last"


def test_who_owed_a_late_answer_and_died_fails_it(make: Make, tmp_path: Path) -> None:
    pool = make(1, kind="process")
    call = pool.submit(chores.answer_later, "never", tmp_path / "on", tmp_path / "free")
    pool.call(chores.double, 1)
    with pytest.raises(MemberDied):
        pool.call(chores.kill_me)
    with pytest.raises(MemberDied, match="put off"):
        call.result(20)


def test_processes_come_from_a_parent_without_threads(make: Make) -> None:
    pool = make(1, kind="process")
    assert pool.call(chores.threads_at_start) == 1


def test_a_result_is_not_kept_alive_by_what_made_it(make: Make) -> None:
    pool = make(1)
    argument = [1, 2, 3]
    before = sys.getrefcount(argument)
    call = pool.submit(len, argument)
    call.result(20)
    eventually(lambda: sys.getrefcount(argument) == before, what="arguments are let go")


def test_a_callback_may_use_the_pool(make: Make, kind: str) -> None:
    pool, results = make(1, kind=kind), list[int]()
    call = pool.submit(chores.double, 1)

    def again(future: Any) -> None:
        pool.submit(chores.double, future.result()).add_done_callback(lambda f: results.append(f.result()))

    call.add_done_callback(again)
    eventually(lambda: results == [4], 20)


def test_a_callback_that_raises_the_exit_of_its_call_ends_no_member(make: Make, kind: str, blocks: Blocks) -> None:
    pool, told = make(1, kind=kind), list[Any]()
    _, release = blocks.hold(pool)
    calls: list[Any] = [pool.submit(chores.leave), pool.submit(chores.double, 1, timeout=0.01)]
    for call in calls:
        call.add_done_callback(lambda done: done.result())
        call.add_done_callback(lambda _: sys.exit(1))
        call.add_done_callback(told.append)
    # The watch has ended the second one, and must live on to end others.
    assert isinstance(calls[1].exception(60), WaitTimeout)
    late = pool.submit(chores.double, 1, timeout=0.01)
    assert isinstance(late.exception(60), WaitTimeout)
    release.touch()
    assert isinstance(calls[0].exception(60), SystemExit)
    assert pool.call(chores.double, 1, timeout=60) == 2
    assert told == calls[::-1], "the callbacks behind it are called"
    assert pool.stats().members[0].restarts == 0


def test_a_closed_pool_refuses_by_name(make: Make, kind: str) -> None:
    pool = make(1, kind=kind, name="kitchen")
    pool.shutdown()
    pool.shutdown()
    for ask in (pool.submit, pool.call, pool.cast, pool.broadcast, pool.broadcall):
        with pytest.raises(ClosedError, match="kitchen was shut down"):
            ask(chores.double, 1)  # type: ignore[operator]
    with pytest.raises(ClosedError):
        pool.resize(2)
    with pytest.raises(ClosedError):
        pool.reserve()


def test_a_call_ends_at_its_timeout_while_the_clock_is_frozen() -> None:
    gate = threading.Event()
    with freeze_time("2026-01-01"), Pool(1, kind="thread") as pool:
        pool.submit(gate.wait, 60)
        second = pool.submit(int, timeout=0.1)
        with pytest.raises(WaitTimeout):
            second.result(20)
        gate.set()


def test_a_call_has_all_that_a_future_has(make: Callable[..., Pool]) -> None:
    """A call does not call its base class when it is made."""
    from concurrent.futures import Future

    call = make(1, kind="thread").submit(chores.double, 1)
    assert set(vars(Future())) <= set(vars(call))
