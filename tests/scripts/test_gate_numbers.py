"""gate_numbers.lua: which numbers a gate goes by."""

from __future__ import annotations

import pytest

from headrace.model.limit_rules import Concurrency, LimitRule
from tests.scripts.limited_stage import change, declare, ids, promote, put
from tests.scripts.stage import SECOND, Stage


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
