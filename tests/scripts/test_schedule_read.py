from __future__ import annotations

from headrace.protocol.ticks import read_schedules
from tests.schedules.bench_of_ticks import fire, put, row
from tests.scripts.stage import Stage


def test_pages_go_by_name(stage: Stage) -> None:
    names = [f"s{n}" for n in range(5)]
    put(stage, *(row(name) for name in reversed(names)))
    first = stage.run(read_schedules(stage.keys, limit=2))
    assert (first.now, first.count, [one.name for one in first.rows]) == (stage.now, 5, names[:2])
    rest = stage.run(read_schedules(stage.keys, after="s1"))
    assert [one.name for one in rest.rows] == names[2:]


def test_a_schedule_tells_what_is_stored(stage: Stage) -> None:
    put(stage, row(within=7, left=3))
    fire(stage)
    page = stage.run(read_schedules(stage.keys, ["s", "other"]))
    (one,) = page.rows
    assert (one.name, one.task, one.queue, one.source) == ("s", "add", "default", "stored")
    assert (one.missed, one.within, one.overlap, one.left, one.state) == ("latest", 7, "allow_all", 3, "active")
    assert len(one.ticks) == 16


def test_alien_fields_become_empty_ones(stage: Stage) -> None:
    put(stage)
    key = stage.keys("schedule:s")
    stage.client.hset(key, mapping={"ticks": b"\xc1", "runs": b"x", "left": b"\xff", "task": b"\xff"})
    stage.client.rpush(stage.keys("ticks:s"), b"\xc1")
    (one,) = stage.run(read_schedules(stage.keys, ["s"], ticks=10)).rows
    assert (one.ticks, one.runs, one.left, one.last) == ([], 0, 0, [])
