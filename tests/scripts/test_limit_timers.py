"""limit_timers.lua: what is due of limits."""

from __future__ import annotations

from headrace.model.limit_rules import Concurrency, LimitRule
from tests.scripts.limited_stage import change, declare, promote, put
from tests.scripts.stage import Stage


def test_lanes_are_looked_at_anew_a_piece_at_a_time(stage: Stage) -> None:
    """A claim and a promotion of others wait no longer than one piece takes."""
    declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(1), by="account")]})
    values = [f"v{n}" for n in range(2000)]
    put(stage, *values, *values)
    for _ in range(2):
        stage.take(limit=1000)
    change(stage, "one", Concurrency(2))
    pieces = [len(stage.take(limit=1000)) for _ in range(8) if promote(stage)]
    assert sum(pieces) == 2000
    assert len([some for some in pieces if some]) >= 3
