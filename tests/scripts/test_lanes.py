"""lanes.lua: classes go where they belong: into their line, or behind a closed gate."""

from __future__ import annotations

from headrace.model.limit_rules import Concurrency, LimitRule
from headrace.protocol import overviews
from tests.scripts.limited_stage import ACCOUNT, change, declare, put
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
