"""limit_take.lua: a start on another shard passes all gates of its job, or none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.model.job import Claim
from headrace.model.limit_rules import Concurrency, LimitRule, Rate, Shape
from headrace.protocol.limit_verbs import GateAnswer, release_hold, take_limits
from tests.scripts.limited_stage import ACCOUNT, API, change, declare, gate, look, put
from tests.scripts.stage import SECOND, Stage

ONE = LimitRule("one", concurrency=Concurrency(1))
SLOW = LimitRule("slow", Rate(10, per=100))


def take(stage: Stage, start: int = 1, account: Any = "x", *, task: str = "call", cost: int = 1) -> GateAnswer:
    """Ask as a start of a job that another shard has."""
    args = msgspec.msgpack.encode([[account], {"account": account}])
    claim = Claim(f"job{start}", start, "default", 0, task, args, number=start, cost=cost)
    return stage.run(take_limits(stage.keys, claim, f"w/{claim.id}/{start}.{15 * SECOND}", 15 * SECOND))


def test_a_start_counts_at_each_gate_of_its_job(stage: Stage) -> None:
    declare(stage, {"call": [API, ACCOUNT]})
    put(stage, 1)
    answer = take(stage)
    assert (answer.held, sorted(answer.gates)) == (True, ["account:x", "api:"])
    assert (look(stage, "api").held, gate(stage, "account:x")[1]) == (1, 1)
    assert len(stage.take(limit=10)) == 1
    assert look(stage, "api").held == 2


def test_where_one_gate_is_closed_none_is_passed(stage: Stage) -> None:
    declare(stage, {"call": [ONE, API]})
    assert take(stage, 1).held
    assert (take(stage, 2).held, take(stage, 2).opens) == (False, 0)
    assert look(stage, "api").held == 1
    stage.run(release_hold(stage.keys, "one", "one:", f"w/job1/1.{15 * SECOND}"))
    assert take(stage, 2).held


def test_a_start_that_did_not_come_about_gives_back_its_rate(stage: Stage) -> None:
    """Its worker had no runner for it any more. It had used up a part of the rate each time."""
    declare(stage, {"call": [SLOW]})
    since = take(stage, 1, cost=10).now
    assert not take(stage, 2, cost=10).held
    stage.run(release_hold(stage.keys, "slow", "slow:", f"w/job1/1.{15 * SECOND}", since=since, unused=10))
    assert take(stage, 2, cost=10).held


def test_the_same_start_again_holds_once(stage: Stage) -> None:
    declare(stage, {"call": [ONE, API]})
    assert [take(stage).gates for _ in range(3)] == [["one:", "api:"]] * 3
    assert gate(stage, "api:")[1] == 1


def test_a_rate_is_used_up_by_the_cost_and_says_when_it_opens(stage: Stage) -> None:
    declare(stage, {"call": [SLOW]})
    assert take(stage, 1, cost=3).held
    answer = take(stage, 2)
    assert not answer.held
    assert stage.now + 29 * SECOND <= answer.opens <= stage.now + 30 * SECOND


@pytest.mark.parametrize("shape", ["window", "clock"])
def test_what_is_left_of_a_rate_suffices_for_the_cost_or_waits_for_it(stage: Stage, shape: Shape) -> None:
    """A start passed where one permit was left, whatever it cost: of 10 in a window 16 started."""
    declare(stage, {"call": [LimitRule("quota", Rate(10, per=60, shape=shape))]})
    assert take(stage, 1, cost=8).held
    answer = take(stage, 2, cost=8)
    assert not answer.held
    assert answer.opens > stage.now
    # Cheap ones do not keep it waiting.
    assert not take(stage, 3).held
    stage.now = answer.opens
    assert take(stage, 2, cost=8).held
    # No start may cost more than there ever is.
    stage.now += 120 * SECOND
    assert take(stage, 4, cost=30).held


def test_a_hold_ends_with_its_lease(stage: Stage) -> None:
    declare(stage, {"call": [ONE]})
    assert take(stage, 1).held
    stage.now += 15 * SECOND
    assert take(stage, 2).held


def test_a_pause_of_all_values_closes_each(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    change(stage, "account", paused=True, duration=9 * SECOND)
    assert take(stage).opens == stage.now + 9 * SECOND


def test_a_task_without_limits_holds_nothing(stage: Stage) -> None:
    declare(stage, {"call": [ONE]})
    assert (take(stage, task="other").held, take(stage, 2, task="other").gates) == (True, [])
