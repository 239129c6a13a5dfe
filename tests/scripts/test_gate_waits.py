"""gate_waits.lua: what waits behind a gate, and which gates are stored."""

from __future__ import annotations

from headrace.model.limit_rules import Concurrency, LimitRule
from tests.scripts.limited_stage import ACCOUNT, API, declare, gate, put
from tests.scripts.stage import Stage


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


def test_what_waits_for_a_gate_is_behind_it_and_nowhere_else(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(1), by="account")]})
    put(stage, "x", "x", "y")
    first, second = stage.take(limit=10)
    assert stage.names("behind:one:x") == {"default|one=|x"}
    assert (gate(stage, "one:x")[2], gate(stage, "one:y")[2]) == (True, False)
    stage.end(first, amount=0)
    stage.end(second, amount=0)
    assert not stage.client.exists(stage.keys("behind:one:x"))
    assert stage.ready() == ["~one="]
