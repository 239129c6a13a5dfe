from __future__ import annotations

from headrace.protocol.ticks import pause_schedule, resume_schedule
from tests.schedules.bench_of_ticks import MINUTE, fire, put, schedule
from tests.scripts.stage import Stage


def test_dispatchers_hear_of_a_resume(stage: Stage) -> None:
    stage.register()
    put(stage)
    stage.run(pause_schedule(stage.keys, "s", ""))
    heard = stage.subscribe(stage.keys.mail("w1"))
    stage.run(resume_schedule(stage.keys, "s"))
    assert heard.get_message(timeout=20)["data"] == b"renew"


def test_a_resume_begins_with_the_next_tick(stage: Stage) -> None:
    put(stage)
    fire(stage)
    stage.run(pause_schedule(stage.keys, "s", ""))
    assert stage.members("ticking") == {}
    stage.now += 5 * MINUTE + 1
    assert stage.run(resume_schedule(stage.keys, "s")) == "resumed"
    fire(stage)
    assert all(stage.now < tick for tick, _ in schedule(stage).ticks)
