"""A call of a job was refused as too frequent: what a worker has claimed of that limit and not begun goes back."""

from __future__ import annotations

from random import Random

import pytest

from headrace.settings import Settings
from headrace.worker.worker_options import QueueOrder, WorkerOptions
from tests.worker.cranked import QUEUES, Job, World

LANE = "a|calls=|"


@pytest.fixture
def world() -> World:
    options = WorkerOptions(processes=1, queues=QueueOrder(QUEUES[:1], ()))
    world = World(Random(1), Settings(startup_profiling=False), options, ("process",))
    world.calm()
    return world


def sent_ahead(world: World, task: str = "process-task", value: str = "x", **facts: str) -> list[Job]:
    """Jobs that a runner holds and that wait behind its first one."""
    for _ in range(60):
        world.store.add(task, QUEUES[0], lane=LANE + value, **facts)
    # Tiny ones are sent ahead once this is known.
    for _ in range(8):
        world.begin()
        world.end("succeeded")
        world.calm()
    # In no time, so that nothing is taken back from a runner that makes no progress.
    world.begin()
    world.end("succeeded")
    exchange(world)
    world.begin()
    held = running(world)
    assert len(held) > 2
    return held


def running(world: World) -> list[Job]:
    return [job for job in world.store.jobs.values() if job.state == "running"]


def exchange(world: World) -> None:
    for _ in range(20):
        world.turn()
        world.store_acts()
        world.store_answers()
        world.waker_acts()
        world.waker_answers()
        world.unblocks()


@pytest.mark.parametrize("key", ["", "k"])
def test_what_has_not_begun_goes_back_at_once(world: World, key: str) -> None:
    held = sent_ahead(world, key=key)
    assert world.end("limited")
    exchange(world)
    assert running(world) == []
    numbers = {job.settled[1] for job in held}
    assert len(numbers) <= 2, "with the refused one, or with the next trip"


def test_what_another_worker_was_refused_goes_back_here_too(world: World) -> None:
    held = sent_ahead(world)
    world.store.close("calls:x", 60_000_000)
    exchange(world)
    assert running(world) == held[:1], "only the one that has begun stays"


def test_what_was_claimed_since_stays(world: World) -> None:
    held = sent_ahead(world)
    world.mail(f"closed:{min(job.token for job in held) - 1}:calls:x")
    world.mail(f"closed:{max(job.token for job in held)}:calls:y")
    exchange(world)
    assert running(world) == held


def test_a_claim_that_was_under_way_goes_back(world: World) -> None:
    """It passed the gate before that closed, and its answer is read after the news."""
    world.store.add("process-task", QUEUES[0], lane=LANE + "x")
    assert world.waker_acts()
    (job,) = running(world)
    world.store.close("calls:x", 60_000_000)
    world.turn()
    world.waker_answers()
    exchange(world)
    assert (job.state, job.starts) == ("ready", 1)
