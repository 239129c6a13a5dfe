"""A pool whose members are just starting: nothing runs, so nobody is busy."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import Pool
from headrace.errors import ClosedError, PoolBroken, PoolFull, WaitTimeout
from tests.deadline import eventually
from tests.pool import chores
from tests.processes import lives

Make = Callable[..., Pool]


def late(path: Path) -> None:
    """An initializer that ends when it is allowed to."""
    while not path.exists():
        time.sleep(0.002)


@pytest.fixture
def starting(make: Make, kind: str, tmp_path: Path) -> Callable[..., tuple[Pool, Callable[[], None]]]:
    """A pool whose members begin to serve when the function is called."""

    def start(n: int, **options: Any) -> tuple[Pool, Callable[[], None]]:
        return make(n, kind=kind, initializer=late, initargs=(tmp_path / "go",), **options), (tmp_path / "go").touch

    return start


Starting = Callable[..., tuple[Pool, Callable[[], None]]]


def test_calls_wait_for_the_start_and_for_nothing_else(starting: Starting) -> None:
    pool, go = starting(2)
    calls = [pool.submit(chores.double, n, strategy="next_available") for n in range(2)]
    with pytest.raises(PoolFull):
        pool.submit(chores.double, 2, strategy="next_available")
    go()
    assert [call.result(20) for call in calls] == [0, 2]


@pytest.mark.parametrize("strategy", ["available", "next_available", "least_loaded", "round_robin", "random"])
def test_without_a_backlog_each_member_that_starts_accepts_one(starting: Starting, strategy: str) -> None:
    pool, go = starting(1, backlog=0)
    call = pool.submit(chores.double, 1, strategy=strategy)
    with pytest.raises(PoolFull):
        pool.submit(chores.double, 2, strategy=strategy)
    go()
    assert call.result(20) == 2


def test_a_backlog_is_what_waits_beside_those_that_start(starting: Starting) -> None:
    pool, go = starting(2, backlog=1)
    calls = [pool.submit(chores.double, n) for n in range(3)]
    with pytest.raises(PoolFull):
        pool.submit(chores.double, 3)
    go()
    assert [call.result(20) for call in calls] == [0, 2, 4]


def test_a_key_is_accepted_by_its_member_alone(starting: Starting) -> None:
    pool, go = starting(2, backlog=0)
    first, second = (next(n for n in range(100) if pool.snapshot.ring.owner(n).id == m) for m in (0, 1))
    call = pool.submit(chores.double, 1, key=first)
    with pytest.raises(PoolFull):
        pool.submit(chores.double, 2, key=first)
    other = pool.submit(chores.double, 3, key=second)
    go()
    assert (call.result(20), other.result(20)) == (2, 6)


def test_what_waits_for_the_start_can_be_cancelled_and_expires(starting: Starting, tmp_path: Path) -> None:
    pool, go = starting(1, backlog=0)
    assert pool.submit(chores.note, tmp_path / "notes", "1", strategy="next_available").cancel()
    with pytest.raises(WaitTimeout):
        pool.submit(chores.note, tmp_path / "notes", "2", strategy="next_available", timeout=0.01).result(20)
    call = pool.submit(chores.double, 1, strategy="next_available")
    go()
    assert call.result(20) == 2
    assert not (tmp_path / "notes").exists()


def test_members_are_waited_for(starting: Starting) -> None:
    pool, go = starting(3)
    with pytest.raises(WaitTimeout, match=r"members \[0, 1, 2\] were not ready within 0.01 s"):
        pool.wait_ready(0.01)
    waiting = threading.Thread(target=pool.wait_ready)
    waiting.start()
    go()
    waiting.join(20)
    assert not waiting.is_alive()
    assert {member.state for member in pool.stats().members} == {"idle"}
    pool.wait_ready(0)
    pool.resize(4)
    pool.wait_ready(20)
    assert len(pool.snapshot.ranks) == 4


def test_members_that_cannot_start_are_not_waited_for(make: Make, kind: str) -> None:
    pool = make(2, kind=kind, restarts=0, initializer=chores.broken_set_up)
    with pytest.raises(PoolBroken, match="no licence"):
        pool.wait_ready(60)
    closed = make(1, kind=kind)
    closed.shutdown()
    with pytest.raises(ClosedError):
        closed.wait_ready(60)


def test_a_member_that_is_replaced_at_once_accepts_a_call(make: Make) -> None:
    pool = make(1, kind="process", backlog=0)
    pool.wait_ready(60)
    with pytest.raises(Exception, match="exit code 3"):
        pool.call(chores.die, 3)
    assert pool.call(chores.double, 1, strategy="next_available", timeout=60) == 2


def test_a_member_whose_replacement_must_wait_is_not_called_busy(make: Make) -> None:
    pool = make(2, kind="process", restarts=1, period=600)
    pool.wait_ready(60)
    key = next(n for n in range(100) if pool.snapshot.ring.owner(n).id == 0)
    for _ in range(2):
        with pytest.raises(Exception, match="exit code 3"):
            pool.submit(chores.die, 3, key=key).result(60)
    eventually(lambda: pool.stats().members[0].state == "away", 20)
    with pool.reserve(strategy="next_available"), pytest.raises(PoolFull, match="1 of 2 members are being replaced"):
        pool.submit(chores.double, 1, strategy="next_available")


@pytest.mark.parametrize("how", ["resize", "shutdown"])
def test_a_broadcast_reaches_members_that_start_and_are_removed(starting: Starting, how: str) -> None:
    pool, go = starting(2)
    replies: list[Any] = []
    asking = threading.Thread(target=lambda: replies.append(pool.broadcall(chores.double, 2)), daemon=True)
    asking.start()
    eventually(lambda: all(m.waiting and m.pid for m in pool.stats().members), 20, what="it waits for both")
    if how == "resize":
        pool.resize(1)
    else:
        pool.shutdown(wait=False)
    go()
    asking.join(20)
    assert not asking.is_alive(), "the caller has its answers"
    assert replies[0].values == {0: 4, 1: 4}
    eventually(lambda: len(pool._scheduler.members) == 1 or how == "shutdown", 20, what="the removed member left")


def test_a_call_that_a_dying_process_did_not_get_runs_though_its_member_is_removed(make: Make) -> None:
    pool = make(2, kind="process", restarts=1)
    pool.wait_ready(60)
    member: Any = pool.snapshot.members[1]
    os.kill(member.body.pid, signal.SIGKILL)
    eventually(lambda: member.restarts and not member.away, 20, what="it was replaced; the next time it must wait")
    calls: list[Any] = []
    with member.body._sending:
        asking = threading.Thread(
            target=lambda: calls.append(pool.submit(chores.double, 2, strategy=lambda crew, _: crew.members[1]))
        )
        asking.start()
        eventually(lambda: member.running is not None, what="it is booked")
        pid = member.body.pid
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not lives(pid), what="its process is dead")
    eventually(lambda: member.away, 20, what="the pool has seen that")
    asking.join(20)
    if not calls[0].sent:
        pool.resize(1)
        assert calls[0].result(20) == 4
