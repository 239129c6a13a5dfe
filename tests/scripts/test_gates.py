"""gates.lua: when a limit lets a job start."""

from __future__ import annotations

import pytest

from headrace.model.limit_rules import Concurrency, LimitRule
from headrace.model.rates import Rate
from tests.scripts.limited_stage import ACCOUNT, API, declare, gate, ids, promote, put
from tests.scripts.stage import SECOND, Stage


def test_no_more_run_at_once_over_all_workers_than_the_limit_says(stage: Stage) -> None:
    declare(stage, {"call": [API]})
    put(stage, *range(5))
    assert len(stage.take("w1", 10)) == 2
    assert stage.take("w2", 10) == []
    assert gate(stage, "api:") == (0.0, 2, True)


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


def test_a_gate_that_says_nothing_more_is_not_stored(stage: Stage) -> None:
    declare(stage, {"call": [API]})
    put(stage, 1)
    stage.end(stage.take()[0], amount=0)
    assert not stage.client.exists(stage.keys("gate:api:"))
    declare(stage, {"call": [ACCOUNT]})
    put(stage, 1)
    stage.end(stage.take()[0], amount=0)
    # It remembers the start until that does not count any more.
    assert 100_000 < stage.client.pttl(stage.keys("gate:account:1")) < 110_000


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
