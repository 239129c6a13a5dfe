from __future__ import annotations

from headrace.protocol import cache_calls
from tests.scripts.stage import SECOND, Stage


def lease(stage: Stage, name: str = "a", wait: float = 0.0, tags: tuple[str, ...] = ()) -> cache_calls.Turn:
    return stage.run(cache_calls.lease(stage.keys, name, tags, wait))


def test_all_who_compute_now_share_one_lease(stage: Stage) -> None:
    first, second, other = (lease(stage, name) for name in ("a", "a", "b"))
    assert first.lease == second.lease != other.lease
    assert (first.first, second.first, other.first) == (True, False, True)
    assert cache_calls.LEASE - 60 < stage.client.ttl(stage.keys("filling:a")) <= cache_calls.LEASE


def test_there_is_none_where_there_is_a_value(stage: Stage) -> None:
    stage.run(cache_calls.store(stage.keys, "a", b"\xc0", 60))
    assert lease(stage) == lease(stage, wait=5) == cache_calls.Turn("", 0, False)
    assert not stage.client.exists(stage.keys("filling:a"))


def test_one_who_waits_is_told_how_long_and_then_it_is_his_turn(stage: Stage) -> None:
    first = lease(stage, wait=5)
    stage.now += 2 * SECOND
    assert lease(stage, wait=5) == cache_calls.Turn(first.lease, 3, False)
    assert lease(stage, wait=10) == cache_calls.Turn(first.lease, 8, False)
    stage.now += 3 * SECOND
    assert lease(stage, wait=5) == cache_calls.Turn(first.lease, 0, True)
    assert lease(stage, wait=5) == cache_calls.Turn(first.lease, 5, False), "the next one's turn comes after his"


def test_a_clock_that_is_set_back_holds_up_nobody_for_longer_than_they_wait(stage: Stage) -> None:
    first = lease(stage, wait=5)
    stage.now -= 3600 * SECOND
    assert lease(stage, wait=5) == cache_calls.Turn(first.lease, 0, True)
    assert lease(stage, wait=5) == cache_calls.Turn(first.lease, 5, False)


def test_a_turn_makes_no_lease_live_longer(stage: Stage) -> None:
    """What is known of deletions by tag lives as long as a lease that is older may."""
    lease(stage)
    stage.client.pexpire(stage.keys("filling:a"), 5000)
    stage.now += 6 * SECOND
    assert lease(stage, wait=5).first
    assert 0 < stage.client.pttl(stage.keys("filling:a")) <= 5000


def test_who_does_not_wait_holds_up_nobody(stage: Stage) -> None:
    lease(stage)
    stage.now += 4 * SECOND
    assert lease(stage).left == 0
    assert lease(stage, wait=5).left == 1


def test_a_lease_of_before_a_drop_is_given_to_nobody(stage: Stage) -> None:
    """What is computed after a deletion may be stored."""
    old = lease(stage, tags=("x",))
    stage.run(cache_calls.drop(stage.keys, "y", True))
    assert lease(stage, tags=("x",)).lease == old.lease
    stage.run(cache_calls.drop(stage.keys, "x", True))
    new = lease(stage, wait=5, tags=("w", "x"))
    assert (new.lease != old.lease, new.left, new.first) == (True, 0, True)
    stage.run(cache_calls.drop(stage.keys, cache_calls.ALL, True))
    assert lease(stage).lease != new.lease
