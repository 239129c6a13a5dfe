"""line_size.lua: jobs in lanes are ready jobs of their queue."""

from __future__ import annotations

from headrace.model.limit_rules import Concurrency, LimitRule
from headrace.protocol import overviews
from headrace.protocol.overviews import store_load
from tests.scripts.limited_stage import ACCOUNT, declare, put
from tests.scripts.stage import SECOND, Stage


def test_jobs_in_lanes_count_and_classes_in_the_line_do_not(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT], "one": [LimitRule("one", concurrency=Concurrency(1))]})

    def sizes() -> tuple[int, int]:
        (queue,) = stage.run(overviews.overview(stage.keys)).queues
        return queue.size, stage.run(store_load(stage.keys, ["default"], SECOND, 1)).ready["default"]

    put(stage, 1, 2, task="plain")
    put(stage, "x", "x", "y")
    put(stage, 1, 2, 3, task="one")
    assert sizes() == (8, 8)
    assert len(stage.take(limit=10)) == 5
    assert sizes() == (3, 3), "also those behind a closed gate, whose class stands in no line"
