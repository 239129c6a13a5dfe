from __future__ import annotations

from headrace.protocol import admin
from tests.scripts.stage import KEEP, SECOND, START, Stage


def test_an_empty_store(stage: Stage) -> None:
    seen = stage.run(admin.overview(stage.keys, stage.now))
    assert (seen.now, seen.queues, seen.workers, seen.parked, seen.bytes) == (START, [], [], {}, 0)
    assert set(seen.states.values()) == {0}


def test_how_much_is_where(stage: Stage) -> None:
    for kind in ("succeeded", "failed", "failed", "cancelled", "corrupt"):
        stage.finished(kind, b"12", KEEP)
    stage.end(stage.running(task="t"), "parked")
    stage.running()
    stage.put(2, queue="b", priority=-1)
    stage.put(delay=SECOND)
    stage.put(3, queue="a")
    stage.run(admin.pause(stage.keys, "a", SECOND, stage.now))
    stage.run(admin.pause(stage.keys, "never-used"))
    seen = stage.run(admin.overview(stage.keys, stage.now))
    assert seen.states == {
        "scheduled": 1, "ready": 5, "running": 1, "parked": 1,
        "blocked": 0, "succeeded": 1, "failed": 2, "cancelled": 1, "quarantined": 1,
    }  # fmt: skip
    assert [(q.name, q.size, q.paused) for q in seen.queues] == [
        ("a", 3, True), ("b", 2, False), ("default", 0, False), ("never-used", 0, True)
    ]  # fmt: skip
    assert (seen.queues[0].oldest, seen.queues[2].oldest) == (START, 0)
    assert [q.until for q in seen.queues] == [START + SECOND, 0, 0, 0]
    (worker,) = seen.workers
    assert (worker.owner, worker.running, worker.lease) == ("w1", 1, START + 15 * SECOND)
    assert worker.facts["place"] == "host:w1"
    assert (seen.parked, seen.bytes) == ({"t": 1}, 10)
