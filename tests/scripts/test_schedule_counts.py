from __future__ import annotations

from headrace.protocol import ticks
from tests.schedules.bench_of_ticks import counts, put, row
from tests.scripts.stage import Stage


def test_it_counts_for_the_first_by_name(stage: Stage) -> None:
    put(stage, row("b"), row("a"), row("c"))
    assert stage.run(ticks.count_ticks(stage.keys, 2)).keys() == {"a", "b"}


def test_alien_counts_are_none(stage: Stage) -> None:
    put(stage)
    stage.client.hset(stage.keys("schedule:s"), mapping={"runs": b"x", "ticks_skipped": 3})
    assert counts(stage) == {"s": {"skipped": 3}}
