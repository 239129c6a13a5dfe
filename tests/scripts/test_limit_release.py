"""limit_release.lua: a program lets go of a gate."""

from __future__ import annotations

from headrace.model.limit_rules import Concurrency, LimitRule
from headrace.protocol.limit_verbs import release_hold
from tests.scripts.limited_stage import declare, hold, put
from tests.scripts.stage import Stage


def test_what_waits_starts_and_a_second_release_frees_nothing(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(1), by="account")]})
    hold(stage, "one", value="x")
    put(stage, "x", "x")
    assert stage.take(limit=10) == []
    stage.doze()
    assert stage.run(release_hold(stage.keys, "one", "one:x", "a"))
    assert stage.tokens() == 1
    assert len(stage.take(limit=10)) == 1
    assert not stage.run(release_hold(stage.keys, "one", "one:x", "a"))
    assert stage.take(limit=10) == []
