from __future__ import annotations

from headrace.protocol import ticks
from tests.schedules.bench_of_ticks import FIRST, MINUTE, fire, put, row, schedule
from tests.scripts.stage import Stage


def test_so_many_failures_in_a_row_pause_a_schedule(stage: Stage) -> None:
    put(stage, row(pause_after=2))
    fire(stage)
    kinds = ["failed", "succeeded", "failed", "quarantined"]
    for n, kind in enumerate(kinds):
        stage.now = FIRST + n * MINUTE
        assert fire(stage).ran == 1
        (claim,) = stage.take()
        stage.end(claim, {"quarantined": "corrupt"}.get(kind, kind))
    stage.now += MINUTE
    assert fire(stage).ran == 0
    assert (schedule(stage).state, schedule(stage).paused) == ("paused", "2 jobs failed, one after the other")
    assert stage.members("ticking") == {}
    # A resume begins to count anew.
    stage.run(ticks.resume_schedule(stage.keys, "s"))
    fire(stage)
    stage.now += MINUTE
    assert fire(stage).ran == 1
