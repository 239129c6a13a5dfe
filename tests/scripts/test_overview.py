from __future__ import annotations

import pytest

from headrace.protocol import operations, overviews
from tests.scripts.stage import KEEP, LEVEL, SECOND, START, Stage

IDLE = 500
"""Queues that are told of though they hold nothing and are neither paused nor served."""


def test_an_empty_store(stage: Stage) -> None:
    seen = stage.run(overviews.overview(stage.keys))
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
    stage.run(operations.pause(stage.keys, "a", SECOND))
    stage.run(operations.pause(stage.keys, "never-used"))
    seen = stage.run(overviews.overview(stage.keys))
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
    assert worker.metadata["place"] == "host:w1"
    assert (seen.parked, seen.bytes) == ({"t": 1}, 10)


@pytest.mark.parametrize("priority", [0, 3, -1, 100, -100])
def test_the_next_job_is_as_old_as_it_is_whatever_its_priority(stage: Stage, priority: int) -> None:
    stage.put(priority=priority)
    stage.now += 7 * SECOND
    (queue,) = stage.run(overviews.overview(stage.keys)).queues
    assert queue.oldest == START


def test_among_priorities_the_next_and_each_claim_tell_their_true_times(stage: Stage) -> None:
    made: list[tuple[str, int, int]] = []
    for priority in (0, -1, 3, 3, 1):
        (id,) = stage.put(priority=priority)
        made.append((id, priority, stage.now))
        stage.now += 2 * SECOND
    # Higher ones first, of the same one the older.
    line = sorted(made, key=lambda one: (-one[1], one[2]))
    for id, priority, ready in line:
        (queue,) = stage.run(overviews.overview(stage.keys)).queues
        assert queue.oldest == ready
        (claim,) = stage.take(limit=1)
        assert (claim.id, claim.priority, claim.ready) == (id, priority, ready)
        assert claim.waited == stage.now - ready
        stage.now += SECOND
        stage.end(claim)


def test_a_first_job_without_a_readable_record_has_its_score(stage: Stage) -> None:
    first, second = stage.put(queue="a", priority=2) + stage.put(queue="b", priority=2)
    stage.client.delete(stage.keys.job(first))
    stage.client.hset(stage.keys.job(second), "priority", "9" * 400)
    seen = stage.run(overviews.overview(stage.keys))
    assert [queue.oldest for queue in seen.queues] == [START - 2 * LEVEL] * 2
    stage.client.delete(stage.keys("ready:a"))


def commands(stage: Stage) -> int:
    """Commands that the server has run, those of scripts included."""
    return sum(row["calls"] for row in stage.client.info("commandstats").values())


def test_queues_of_the_past_cost_nothing(stage: Stage) -> None:
    stage.register("w1")
    stage.client.hset(stage.keys("owner:w1"), "queues", "served,other")
    for name in ("busy", "served", "held"):
        stage.put(queue=name)
    stage.take(queues=["served", "held"])
    stage.run(operations.pause(stage.keys, "held"))
    for n in range(3000):
        stage.client.sadd(stage.keys("queues"), f"past{n}")
        stage.client.zadd(stage.keys.wake(f"past{n}"), {"": 0})
    seen = stage.run(overviews.overview(stage.keys))
    live = {"busy", "served", "other", "held"}
    told = {queue.name for queue in seen.queues}
    assert (len(told), told & live) == (IDLE + len(live), live)
    before = commands(stage)
    again = stage.run(overviews.overview(stage.keys))
    assert commands(stage) - before < 2 * IDLE
    assert again.queues == seen.queues
    # What was forgotten is known again with its next job.
    gone = next(name for name in (f"past{n}" for n in range(3000)) if name not in told)
    (id,) = stage.put(queue=gone)
    assert stage.names("queues") >= {gone, "busy"}
    assert stage.ready(gone) == [id]
    assert stage.tokens(gone) == 1


def test_queues_of_a_silent_worker_are_idle(stage: Stage) -> None:
    stage.register("w1")
    stage.client.hset(stage.keys("owner:w1"), "queues", "served")
    assert [queue.name for queue in stage.run(overviews.overview(stage.keys)).queues] == ["served"]
    assert stage.run(overviews.overview(stage.keys).at(stage.now + 16 * SECOND)).queues == []


def test_workers_may_be_told_of_without_their_runners(stage: Stage) -> None:
    stage.register("w1")
    stage.client.hset(
        stage.keys("owner:w1"), mapping={"queues": "a", "sizes": "async:2", "busy": "async:1", "runner_facts": "[]"}
    )
    (whole,) = stage.run(overviews.overview(stage.keys)).workers
    (brief,) = stage.run(overviews.overview(stage.keys, details=False)).workers
    assert whole.metadata.keys() - brief.metadata.keys() == {"runner_facts", "lease"}
    assert (brief.sizes, brief.busy, brief.metadata["place"]) == ({"async": 2}, {"async": 1}, "host:w1")
