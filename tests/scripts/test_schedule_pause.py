from __future__ import annotations

from headrace.protocol.ticks import pause_schedule, resume_schedule
from tests.schedules.bench_of_ticks import FIRST, MINUTE, fire, put, row, schedule, told
from tests.scripts.stage import SECOND, Stage


def test_ticks_of_a_pause_neither_run_nor_are_missed(stage: Stage) -> None:
    put(stage, row(missed="all"))
    fire(stage)
    assert stage.run(pause_schedule(stage.keys, "s", "vendor is down")) == "paused"
    assert stage.run(pause_schedule(stage.keys, "s", "still down").at(stage.now + SECOND)) == "was"
    one = schedule(stage)
    assert (one.state, one.paused, one.paused_at) == ("paused", "still down", stage.now)
    # As that of a queue: the reason of an earlier pause must not stand for one that gave none.
    assert stage.run(pause_schedule(stage.keys, "s", "").at(stage.now + SECOND)) == "was"
    assert (schedule(stage).paused, schedule(stage).paused_at) == ("", stage.now)
    stage.now = FIRST + 10 * MINUTE
    assert fire(stage).ran == 0
    assert stage.run(resume_schedule(stage.keys, "s")) == "resumed"
    assert stage.run(resume_schedule(stage.keys, "s")) == "was"
    assert fire(stage).ran == 0
    stage.now += MINUTE
    assert fire(stage).ran == 1
    assert told(stage) == [(11 * 60, "ran", 1)]


def test_what_is_not_there_is_missing(stage: Stage) -> None:
    assert stage.run(pause_schedule(stage.keys, "x", "")) == "missing"
    assert stage.run(resume_schedule(stage.keys, "x")) == "missing"
    assert stage.client.dbsize() == 0
