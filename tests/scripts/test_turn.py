"""The included script ``turn``: one job of a key at a time, in order, whatever becomes of it; and none waits for nobody."""

from __future__ import annotations

import pytest

from headrace.protocol import consume, operations, overviews, produce
from headrace.testing import assert_invariants
from tests.scripts.stage import KEEP, SECOND, Stage


def put(stage: Stage, count: int = 1, key: str = "k", **facts: object) -> list[str]:
    return stage.put(count, key=key, ordered=True, **facts)


def blocked(stage: Stage) -> int:
    return stage.run(overviews.overview(stage.keys)).states["blocked"]


def turn(stage: Stage, key: str = "k") -> str | None:
    holder = stage.client.get(stage.keys(f"turn:{key}"))
    return holder.decode() if holder else None


def test_one_of_a_key_is_ready_and_the_others_wait_in_order(stage: Stage) -> None:
    ids = put(stage, 3)
    other = put(stage, key="other")
    assert stage.ready() == [ids[0], *other]
    assert list(stage.members("chain:k")) == ids[1:]
    assert [stage.state(id) for id in ids] == ["ready", "blocked", "blocked"]
    assert blocked(stage) == 2
    for id in ids:
        claims = stage.take()
        assert id in [claim.id for claim in claims]
        for claim in claims:
            stage.end(claim, amount=0)
    assert stage.client.keys("*turn:*") + stage.client.keys("*chain:*") == []
    assert blocked(stage) == 0


@pytest.mark.parametrize("count", [999, 1000, 1001, 2500])
def test_a_large_batch_of_one_key_keeps_its_order(stage: Stage, count: int) -> None:
    ids = put(stage, count)
    assert stage.ready() == ids[:1]
    assert list(stage.members("chain:k")) == ids[1:]


def test_a_plain_job_with_the_key_waits_for_nobody(stage: Stage) -> None:
    put(stage, 2)
    plain = stage.put(key="k")
    assert len(stage.ready()) == 2
    assert plain[0] in stage.ready()


def test_the_next_one_is_claimed_in_the_trip_that_settles_the_one_before(stage: Stage) -> None:
    _, second = put(stage, 2)
    (claim,) = stage.take()
    stage.doze()
    stage.end(claim)
    assert stage.tokens() == 1
    assert [claim.id for claim in stage.take()] == [second]


@pytest.mark.parametrize("kind", ["failed", "cancelled", "corrupt"])
def test_any_end_passes_the_turn_on(stage: Stage, kind: str) -> None:
    _, second = put(stage, 2)
    (claim,) = stage.take()
    stage.end(claim, kind)
    assert (stage.ready(), turn(stage)) == ([second], second)


@pytest.mark.parametrize("kind", ["retry", "snoozed"])
def test_a_job_that_comes_again_keeps_its_turn(stage: Stage, kind: str) -> None:
    first, second = put(stage, 2)
    (claim,) = stage.take()
    stage.end(claim, kind, b"{}", SECOND)
    assert (stage.ready(), stage.state(first), stage.state(second)) == ([], "scheduled", "blocked")
    stage.now += SECOND
    stage.run(consume.promote(stage.keys, 10))
    assert stage.ready() == [first]


@pytest.mark.parametrize("kind", ["retry", "snoozed", "released", "interrupted", "crashed"])
def test_a_job_that_comes_again_at_once_keeps_its_turn(stage: Stage, kind: str) -> None:
    first, second = put(stage, 2)
    (claim,) = stage.take()
    stage.end(claim, kind, b"{}", 0)
    assert (stage.ready(), stage.state(second)) == ([first], "blocked")


def test_a_job_that_is_parked_keeps_its_turn(stage: Stage) -> None:
    first, second = put(stage, 2)
    (claim,) = stage.take()
    stage.end(claim, "parked")
    assert stage.ready() == []
    stage.run(consume.unpark(stage.keys, "add", 10, ["default"]))
    assert (stage.ready(), stage.state(second)) == ([first], "blocked")


def test_what_a_dead_worker_ran_comes_again_first_until_its_budget_is_used_up(stage: Stage) -> None:
    first, second = put(stage, 2, max_crashes=2)
    for owner in ("w1", "w2"):
        assert [claim.id for claim in stage.take(owner)] == [first]
        stage.run(consume.reclaim(stage.keys, owner, True, 500, KEEP))
    assert stage.state(first) == "quarantined"
    assert stage.ready() == [second]


def test_a_delayed_job_joins_when_its_time_has_come(stage: Stage) -> None:
    (late,) = put(stage, delay=SECOND)
    (early,) = put(stage)
    assert turn(stage) == early
    stage.now += SECOND
    stage.run(consume.promote(stage.keys, 10))
    assert stage.state(late) == "blocked"
    stage.end(stage.take()[0])
    assert stage.ready() == [late]


def test_cancelling_takes_out_of_the_chain_or_passes_the_turn_on(stage: Stage) -> None:
    first, second, third = put(stage, 3)
    assert stage.run(produce.cancel(stage.keys, second, KEEP)) == "cancelled"
    assert (blocked(stage), turn(stage)) == (1, first)
    assert stage.run(produce.cancel(stage.keys, first, 0)) == "cancelled"
    assert (stage.ready(), turn(stage)) == ([third], third)
    (claim,) = stage.take()
    assert stage.run(produce.cancel(stage.keys, third, KEEP)) == "asked"
    stage.end(claim, "released")
    assert (stage.state(third), turn(stage)) == ("cancelled", None)


def test_cancelling_a_delayed_one_leaves_the_turn_where_it_is(stage: Stage) -> None:
    (late,) = put(stage, delay=SECOND)
    (early,) = put(stage)
    stage.run(produce.cancel(stage.keys, late, KEEP))
    assert turn(stage) == early


def test_a_job_that_runs_again_joins_behind_the_others(stage: Stage) -> None:
    first, second, third = put(stage, 3)
    stage.end(stage.take()[0], "failed")
    assert stage.run(produce.rerun(stage.keys, first, "r")) == "retried"
    assert list(stage.members("chain:k")) == [third, first]
    assert stage.ready() == [second]


def test_a_purge_takes_those_whose_turn_comes_by_it(stage: Stage) -> None:
    put(stage, 5)
    elsewhere = put(stage, key="k", queue="other")
    stage.put(2)
    assert stage.run(operations.purge(stage.keys, "default", 4)) == (4, 1)
    assert stage.run(operations.purge(stage.keys, "default", 1000)) == (3, 0)
    assert stage.ready("other") == elsewhere


def test_one_key_may_span_queues_and_tasks(stage: Stage) -> None:
    first = put(stage, queue="a", task="one")
    second = put(stage, queue="b", task="two")
    assert (stage.ready("a"), stage.ready("b"), stage.tokens("b")) == (first, [], 0)
    stage.end(stage.take(queues=["a"])[0])
    assert (stage.ready("b"), stage.tokens("b")) == (second, 1)


def test_a_clock_that_is_set_back_lets_nobody_overtake(stage: Stage) -> None:
    ids = put(stage, 2)
    stage.now -= 100 * SECOND
    ids += put(stage, 2)
    assert list(stage.members("chain:k")) == ids[1:]


def test_priority_counts_in_the_queue_and_not_in_the_chain(stage: Stage) -> None:
    first, second = put(stage, 2)
    (third,) = put(stage, priority=50)
    assert list(stage.members("chain:k")) == [second, third]
    assert turn(stage) == first


@pytest.mark.mangles
@pytest.mark.parametrize("alien", [None, "text"])
def test_a_lost_record_does_not_hold_its_key_for_ever(stage: Stage, alien: str | None) -> None:
    first, second, third = put(stage, 3)
    stage.take()
    stage.client.delete(stage.keys.job(first))
    if alien:
        stage.client.set(stage.keys.job(first), alien)
    (fourth,) = put(stage)
    assert (stage.ready(), turn(stage)) == ([second], second)
    assert list(stage.members("chain:k")) == [third, fourth]


@pytest.mark.mangles
def test_what_is_lost_in_a_chain_is_passed_over(stage: Stage) -> None:
    first, second, third = put(stage, 3)
    stage.client.delete(stage.keys.job(second))
    (claim,) = stage.take()
    assert claim.id == first
    stage.end(claim)
    assert (stage.ready(), blocked(stage)) == ([third], 0)


@pytest.mark.mangles
def test_a_record_that_lost_its_key_ends_without_harm(stage: Stage) -> None:
    (first,) = put(stage)
    (claim,) = stage.take()
    stage.client.hdel(stage.keys.job(first), "key")
    stage.end(claim, "retry", b"{}", 0)
    assert stage.ready() == [first]


@pytest.mark.mangles
def test_the_invariants_see_what_is_wrong_with_an_order(stage: Stage) -> None:
    first, second = put(stage, 2)
    assert_invariants(stage.client)
    for what, damage in {
        "no job has": lambda: stage.client.delete(stage.keys("turn:k")),
        "which is blocked": lambda: stage.client.set(stage.keys("turn:k"), second),
        "which is not stored": lambda: stage.client.set(stage.keys("turn:gone"), "0" * 21),
        "wait in chains": lambda: stage.client.hincrby(stage.keys("totals"), "blocked", 1),
        "chain:k, but it is in no structure": lambda: stage.client.zrem(stage.keys("chain:k"), second),
    }.items():
        damage()
        with pytest.raises(AssertionError, match=what):
            assert_invariants(stage.client)
        stage.client.set(stage.keys("turn:k"), first)
        stage.client.delete(stage.keys("turn:gone"))
        stage.client.hset(stage.keys("totals"), "blocked", 1)
        stage.client.zadd(stage.keys("chain:k"), {second: 1})
    assert_invariants(stage.client)
