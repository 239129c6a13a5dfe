from __future__ import annotations

from tests.schedules.bench_of_ticks import FIRST, MINUTE, fire, put, row, told
from tests.scripts.stage import Stage


def test_the_last_hundred_ticks_are_told_of(stage: Stage) -> None:
    put(stage, row(missed="all"))
    fire(stage)
    for n in range(3):
        stage.now = FIRST + (n + 1) * 50 * MINUTE
        fire(stage)
    rows = told(stage)
    assert len(rows) == 100
    assert [tick for tick, _, _ in rows] == [60 * n for n in range(51, 151)]
