"""lanes.lua: classes go where they belong: into their line, or behind a closed gate."""

from __future__ import annotations

from headrace.model.limit_rules import Concurrency, LimitRule
from headrace.protocol import overviews
from tests.scripts.limited_stage import ACCOUNT, API, change, declare, gate, put
from tests.scripts.stage import Stage


def test_a_class_whose_gate_is_closed_is_parked_as_a_whole(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(1)), LimitRule("fair", by="account")]})
    put(stage, *range(100))
    (claim,) = stage.take(limit=50)
    assert stage.names("behind:one:") == {"default|one,fair="}
    assert stage.ready() == []
    stage.doze()
    put(stage, "new")
    assert stage.tokens() == 0
    stage.end(claim, amount=0)
    assert stage.tokens() == 1
    assert len(stage.take(limit=50)) == 1


def test_a_queue_is_known_though_all_its_jobs_wait_for_a_closed_gate(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    change(stage, "account", paused=True)
    put(stage, "x", queue="new")
    seen = stage.run(overviews.overview(stage.keys))
    assert ("new", 1) in [(queue.name, queue.size) for queue in seen.queues]
    assert seen.states["ready"] == 1


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
