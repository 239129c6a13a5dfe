"""look_anew.lua: what is said of a limit counts at once for what waits."""

from __future__ import annotations

from headrace.model.limit_rules import Concurrency, LimitRule, Rate
from tests.scripts.limited_stage import change, declare, gate, look, promote, put
from tests.scripts.stage import SECOND, Stage


def test_numbers_that_changed_count_at_once_for_what_waits(stage: Stage) -> None:
    def with_most(n: int) -> None:
        declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(n), by="account")]})

    with_most(1)
    put(stage, "x", "x", "y", "y")
    assert len(stage.take(limit=10)) == 2
    stage.doze()
    with_most(2)
    assert stage.tokens() == 1
    promote(stage)
    assert len(stage.take(limit=10)) == 2
    assert gate(stage, "one:x")[1] == 2


ONE = LimitRule("one", concurrency=Concurrency(1), by="account")
SLOW = LimitRule("slow", Rate(1, per=100), by="account")


def test_each_part_ends_by_itself(stage: Stage) -> None:
    declare(stage, {"call": [ONE]})
    change(stage, "one", Concurrency(5), duration=10 * SECOND)
    change(stage, "one", paused=True, duration=20 * SECOND)
    stage.now += 10 * SECOND
    # It does not count any more, though no worker was awake to remove it.
    assert look(stage, "one").concurrency == Concurrency(1)
    assert look(stage, "one").paused
    promote(stage)
    assert [one.part for one in look(stage, "one").overrides] == ["paused"]
    stage.now += 10 * SECOND
    promote(stage)
    assert not stage.client.exists(stage.keys("overrides:one"))
    assert not stage.client.exists(stage.keys("timers"))
    assert not look(stage, "one").paused


def test_a_rate_leaves_nothing_of_the_one_that_code_declares(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("api", Rate(10, per=1, burst=5), Concurrency(7))]})
    change(stage, "api", Rate(2, per=60))
    assert look(stage, "api").rate == Rate(2, per=60)
    assert look(stage, "api").concurrency == Concurrency(7)
    change(stage, "api", gone=["rate"])
    assert look(stage, "api").rate == Rate(10, per=1, burst=5)


def test_what_is_said_of_a_value_counts_over_what_is_said_of_all(stage: Stage) -> None:
    declare(stage, {"call": [ONE]})
    change(stage, "one", Concurrency(2))
    change(stage, "one", Concurrency(3), value="x")
    put(stage, *["x"] * 9, *["y"] * 9)
    assert len(stage.take(limit=50)) == 5
    assert gate(stage, "one:x")[1] == 3


def test_a_worker_that_declares_other_numbers_leaves_them_alone(stage: Stage) -> None:
    declare(stage, {"call": [ONE]})
    change(stage, "one", Concurrency(3))
    declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(2), by="account")]}, "w2")
    put(stage, *["x"] * 9)
    assert len(stage.take(limit=50)) == 3
    change(stage, "one", gone=["concurrency"])
    assert look(stage, "one").concurrency == Concurrency(2)


def test_a_faster_rate_is_felt_by_what_waits(stage: Stage) -> None:
    declare(stage, {"call": [SLOW]})
    put(stage, "x", "x", "x")
    assert len(stage.take(limit=50)) == 1
    stage.now += SECOND
    change(stage, "slow", Rate(10, per=1), value="x")
    stage.now += SECOND // 10
    promote(stage)
    assert len(stage.take(limit=50)) == 1


def test_a_faster_rate_is_felt_by_what_comes_later(stage: Stage) -> None:
    declare(stage, {"call": [SLOW]})
    put(stage, "x")
    assert len(stage.take(limit=50)) == 1
    change(stage, "slow", Rate(10, per=1))
    stage.now += SECOND
    put(stage, "x")
    assert len(stage.take(limit=50)) == 1


def test_values_take_turns_by_weight(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("fair", by="account")]})
    change(stage, "fair", weight=3, value="x")
    of = dict.fromkeys(put(stage, *["x"] * 100), "x") | dict.fromkeys(put(stage, *["y"] * 100), "y")
    taken = [of[claim.id] for _ in range(10) for claim in stage.take(limit=8)]
    assert (taken.count("x"), taken.count("y")) == (60, 20)
