"""look_anew.lua: what is said of a limit counts at once for what waits."""

from __future__ import annotations

from headrace.model.limit_rules import Concurrency, LimitRule
from tests.scripts.limited_stage import declare, gate, promote, put
from tests.scripts.stage import Stage


def test_numbers_that_changed_count_at_once_for_what_waits(stage: Stage) -> None:
    def with_most(n: int) -> None:
        declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(n), by="account")]})

    with_most(1)
    put(stage, "x", "x", "y", "y")
    assert len(stage.take(limit=10)) == 2
    stage.doze()
    with_most(2)
    assert stage.tokens() == 1
    promote(stage)
    assert len(stage.take(limit=10)) == 2
    assert gate(stage, "one:x")[1] == 2
