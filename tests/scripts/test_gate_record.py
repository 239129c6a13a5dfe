"""gate_record.lua: what a gate remembers, also where the clock is set back."""

from __future__ import annotations

from headrace.model.limit_rules import LimitRule, Rate
from tests.scripts.limited_stage import declare, gate, promote, put
from tests.scripts.stage import SECOND, Stage

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
