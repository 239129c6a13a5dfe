from __future__ import annotations

from headrace.protocol import stats_calls
from headrace.protocol.stats_calls import Counts
from tests.scripts.stage import Stage
from tests.scripts.stats_stage import fresh


def test_bodies_come_in_the_order_of_the_ids(stage: Stage) -> None:
    fresh(stage)
    for id in ("e1", "e2"):
        stage.run(stats_calls.event(stage.keys, id, stage.now, 100, id.encode() * 2, Counts({}, {})))
    assert stage.run(stats_calls.look(stage.keys, ["e2", "e0", "e1"])) == [b"e2e2", None, b"e1e1"]
