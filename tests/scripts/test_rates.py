"""rates.lua: when a rate lets jobs start that cost different amounts."""

from __future__ import annotations

from headrace.model.limit_rules import LimitRule, Rate
from tests.scripts.limited_stage import declare, gate, ids, promote, put
from tests.scripts.stage import SECOND, Stage

SLOW = LimitRule("slow", Rate(10, per=1000))


def test_a_dear_job_starts_when_the_gate_is_open_and_closes_it_for_its_worth(stage: Stage) -> None:
    declare(stage, {"call": [SLOW]})
    begun = stage.now
    (dear,) = put(stage, 1, cost=5)
    put(stage, 2)
    assert ids(stage.take(limit=10)) == [dear]
    assert stage.claim().due == begun + 490 * SECOND
    stage.now = begun + 490 * SECOND
    promote(stage)
    assert len(stage.take(limit=10)) == 1


def test_a_dear_job_takes_as_many_turns(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("fair", by="account")]})
    x = put(stage, *["x"] * 3, cost=2)
    y = put(stage, *["y"] * 6)
    assert ids(stage.take(limit=6)) == [x[0], y[0], y[1], x[1], y[2], y[3]]


def test_only_the_last_start_gives_its_permit_back(stage: Stage) -> None:
    declare(stage, {"call": [SLOW]})
    begun = stage.now
    put(stage, *range(3))
    (first,) = stage.take(limit=1)
    stage.now = begun + 100 * SECOND
    promote(stage)
    (second,) = stage.take(limit=1)
    stage.end(first, "released")
    assert gate(stage, "slow:")[0] == begun + 190 * SECOND
    stage.end(second, "released")
    assert len(stage.take(limit=10)) == 1
