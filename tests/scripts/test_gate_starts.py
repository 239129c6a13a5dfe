"""gate_starts.lua: starts, ends and refusals count at their gates."""

from __future__ import annotations

import pytest

from headrace.model.limit_rules import Concurrency, LimitRule
from tests.scripts.limited_stage import API, declare, gate, ids, put
from tests.scripts.stage import SECOND, Stage


def test_no_more_run_at_once_over_all_workers_than_the_limit_says(stage: Stage) -> None:
    declare(stage, {"call": [API]})
    put(stage, *range(5))
    assert len(stage.take("w1", 10)) == 2
    assert stage.take("w2", 10) == []
    assert gate(stage, "api:") == (0.0, 2, True)


@pytest.mark.parametrize("kind", ["succeeded", "failed", "cancelled", "retry", "snoozed", "interrupted", "crashed"])
def test_the_end_of_a_start_opens_the_gate_whatever_it_is(stage: Stage, kind: str) -> None:
    declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(1))]})
    first, second = put(stage, 1, 2)
    (claim,) = stage.take(limit=10)
    assert claim.id == first
    stage.doze()
    stage.end(claim, kind, b"{}", SECOND)
    assert stage.tokens() == 1
    assert second in ids(stage.take(limit=10)) or kind in ("interrupted", "crashed")
