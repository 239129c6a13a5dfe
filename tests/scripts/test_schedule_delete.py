from __future__ import annotations

from headrace.protocol import ticks
from tests.schedules.bench_of_ticks import fire, put
from tests.scripts.stage import Stage


def test_a_deleted_schedule_leaves_no_timer(stage: Stage) -> None:
    put(stage)
    fire(stage)
    assert stage.run(ticks.delete_schedule(stage.keys, "s"))
    assert not stage.run(ticks.delete_schedule(stage.keys, "s"))
    assert stage.client.dbsize() == 0
