"""limit_keep.lua: a program goes on holding a gate."""

from __future__ import annotations

from headrace.protocol.limit_verbs import keep_hold
from tests.scripts.limited_stage import API, declare, gate, hold, promote
from tests.scripts.stage import SECOND, Stage


def test_a_hold_that_is_kept_outlives_its_first_lease(stage: Stage) -> None:
    declare(stage, {"call": [API]})
    hold(stage, "api", lease=15 * SECOND)
    for _ in range(4):
        stage.now += 5 * SECOND
        assert stage.run(keep_hold(stage.keys, "api:", "a", 15 * SECOND))
        promote(stage)
    assert gate(stage, "api:")[1] == 1


def test_one_that_is_over_says_so(stage: Stage) -> None:
    declare(stage, {"call": [API]})
    hold(stage, "api", lease=15 * SECOND)
    stage.now += 15 * SECOND
    promote(stage)
    assert not stage.run(keep_hold(stage.keys, "api:", "a", 15 * SECOND))
    assert not stage.client.exists(stage.keys("timers"))
