"""gate_opening.lua: whether a gate is open for a job, and when it opens."""

from __future__ import annotations

from headrace.model.limit_rules import LimitRule, Rate
from tests.scripts.limited_stage import declare, gate, promote, put
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
