"""gates.lua: gates as they are stored, read again."""

from __future__ import annotations

from headrace.model.limit_rules import LimitRule, Rate
from tests.scripts.limited_stage import declare, promote, put
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
