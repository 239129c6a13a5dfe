"""gate_opening.lua: whether a gate is open for a job, and when it opens."""

from __future__ import annotations

import pytest

from headrace.model.limit_rules import Concurrency, LimitRule, Rate
from tests.scripts.limited_stage import API, declare, gate, ids, promote, put
from tests.scripts.stage import SECOND, Stage


def test_a_rate_spreads_starts_evenly(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("slow", Rate(10, per=1000))]})
    put(stage, *range(4))
    begun = stage.now
    for n in range(3):
        assert len(stage.take(limit=10)) == 1
        assert stage.take(limit=10) == []
        # After a time without work the second may come 1 % of the period early: so the first was late.
        assert stage.claim().due == begun + (n * 100 + 90) * SECOND
        stage.now = begun + (n * 100 + 90) * SECOND
        promote(stage)


def test_a_late_start_is_made_good_up_to_a_hundredth_of_the_period(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("slow", Rate(10, per=1000))]})
    put(stage, *range(9))
    begun = stage.now
    opens: list[float] = []
    for seconds in (0, 95, 195, 305):
        stage.now = begun + seconds * SECOND
        promote(stage)
        assert len(stage.take(limit=10)) == 1
        opens.append((gate(stage, "slow:")[0] - begun) / SECOND)
    # One that is late by 15 is made good by 10.
    assert opens == [90, 190, 290, 395]


def test_a_burst_lets_more_start_together(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("slow", Rate(1, per=1000, burst=3))]})
    put(stage, *range(9))
    assert len(stage.take(limit=10)) == 4


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
