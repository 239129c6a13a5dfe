"""gates.lua: gates as they are stored, read again."""

from __future__ import annotations

import pytest

from headrace.model.limit_rules import Concurrency, LimitRule, Rate
from headrace.protocol import consume
from tests.scripts.limited_stage import LEASE, change, declare, gate, ids, look, promote, put
from tests.scripts.stage import SECOND, Stage


def test_a_clock_that_is_set_back_does_not_keep_a_gate_closed(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("slow", Rate(1, per=100))]})
    put(stage, 1, 2)
    assert len(stage.take(limit=1)) == 1
    stage.now -= 3600 * SECOND
    assert stage.take(limit=1) == []
    put(stage, 3)
    stage.now += 100 * SECOND
    promote(stage)
    assert len(stage.take(limit=10)) == 1


SLOW = LimitRule("slow", Rate(10, per=1000))


def test_a_clock_that_is_set_back_leaves_a_gate_closed_for_what_its_last_start_cost(stage: Stage) -> None:
    declare(stage, {"call": [SLOW]})
    put(stage, 1, cost=3)
    put(stage, 2)
    assert len(stage.take(limit=10)) == 1
    stage.now -= 3600 * SECOND
    assert stage.take(limit=10) == []
    put(stage, 3)
    assert gate(stage, "slow:")[0] == stage.now + 290 * SECOND
    stage.now += 290 * SECOND
    promote(stage)
    assert len(stage.take(limit=10)) == 1


def test_permits_from_before_do_not_come_back(stage: Stage) -> None:
    declare(stage, {"call": [SLOW]})
    put(stage, 1, 2)
    (claim,) = stage.take(limit=10)
    stage.now -= 3600 * SECOND
    put(stage, 3)
    stage.end(claim, "released")
    assert gate(stage, "slow:")[0] == stage.now + 90 * SECOND
    # Limits can still be read, changed and deleted: the token of then is no limit of a task.
    assert look(stage, "slow").rate == SLOW.rate
    assert stage.client.hkeys(stage.keys("limited")) == [b"task:call"]
    assert 0 < stage.client.ttl(stage.keys("rewound")) <= 86_400


def test_a_worker_that_sees_the_clock_set_back_has_the_gates_looked_at(stage: Stage) -> None:
    """Nothing else comes that would: no job, no end."""
    slow = LimitRule("slow", Rate(10, per=1000), by="account")
    declare(stage, {"call": [slow, LimitRule("refused", by="account")]})
    values = range(3)
    put(stage, *values, *values, cost=3)
    assert len(stage.take(limit=10)) == 3
    stage.now -= 3600 * SECOND
    assert stage.run(consume.renew(stage.keys, "w1", LEASE)).due == stage.now
    promote(stage)
    opens = stage.now + 290 * SECOND
    assert stage.run(consume.renew(stage.keys, "w1", LEASE)).due == opens
    stage.now = opens
    promote(stage)
    assert len(stage.take(limit=10)) == 3


def test_more_gates_than_one_look_takes(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("slow", Rate(10, per=1000), by="account")]})
    put(stage, *range(1500), *range(1500))
    while stage.take(limit=1000):
        pass
    stage.now -= 3600 * SECOND
    stage.run(consume.renew(stage.keys, "w1", LEASE))
    for _ in range(10):
        promote(stage)
    stage.now += 90 * SECOND
    for _ in range(10):
        promote(stage)
    assert len(stage.take(limit=1000)) == 1000
    assert len(stage.take(limit=1000)) == 500


def renewal(stage: Stage) -> int:
    """Commands of a renewal."""
    counts = list[int]()
    for _ in range(3):
        stage.now += 1
        counts.append(stage.commands())
        stage.run(consume.renew(stage.keys, "w1", LEASE))
    return counts[2] - counts[1]


def test_a_renewal_at_a_clock_that_goes_on_asks_nothing_more(stage: Stage) -> None:
    stage.register("w1", LEASE)
    stage.put(1, delay=SECOND)
    stage.put(1)
    stage.take(limit=1)
    without = renewal(stage)
    declare(stage, {"call": [SLOW]})
    put(stage, 1, 2)
    stage.take(limit=10)
    assert renewal(stage) == without


@pytest.mark.parametrize(("rate", "opens"), [(Rate(100, per=1), 0.04), (Rate(1, per=1000), 390), (None, 0)])
def test_a_faster_rate_opens_a_closed_gate_sooner(stage: Stage, rate: Rate | None, opens: float) -> None:
    declare(stage, {"call": [SLOW]})
    put(stage, 1, cost=4)
    put(stage, 2)
    assert len(stage.take(limit=10)) == 1
    declare(stage, {"call": [LimitRule("slow", rate, Concurrency(9))]})
    promote(stage)
    assert len(stage.take(limit=10)) == (opens == 0)
    if opens:
        told = stage.client.zscore(stage.keys("scheduled"), "~")
        assert told == pytest.approx(stage.now + opens * SECOND, abs=10_000)


@pytest.mark.parametrize("value", [None, "x"])
def test_what_an_operator_says_counts_before_the_code_until_its_end(stage: Stage, value: str | None) -> None:
    declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(1), by="account")]})
    change(stage, "one", Concurrency(3), value=value, duration=5 * SECOND)
    came = put(stage, *["x"] * 9)
    claims = stage.take(limit=9)
    assert ids(claims) == came[:3]
    stage.now += 6 * SECOND
    promote(stage)
    for claim in claims:
        stage.end(claim, amount=0)
    assert ids(stage.take(limit=9)) == came[3:4], "its time is over"


def test_the_numbers_of_one_value_leave_those_of_others_alone(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(1), by="account")]})
    change(stage, "one", Concurrency(2), value="x")
    x, y = put(stage, "x", "x", "x"), put(stage, "y", "y", "y")
    assert set(ids(stage.take(limit=9))) == {*x[:2], y[0]}


def test_a_pause_of_all_values_is_one_gate(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(1), by="account")]})
    change(stage, "one", paused=True)
    put(stage, "x", "y")
    assert stage.take(limit=9) == []
    assert stage.client.exists(stage.keys("behind:one:*"))
