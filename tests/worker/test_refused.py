"""A call of a job was refused as too frequent: what its worker holds of that task, and has not begun, goes back."""

from __future__ import annotations

from random import Random

import pytest

from headrace.settings import Settings
from headrace.worker.worker_options import QueueOrder, WorkerOptions
from tests.worker.cranked import QUEUES, World


@pytest.fixture
def world() -> World:
    options = WorkerOptions(processes=1, queues=QueueOrder(QUEUES[:1], ()))
    world = World(Random(1), Settings(startup_profiling=False), options, ("process",))
    world.calm()
    return world


@pytest.mark.parametrize("strategy", ["least_loaded", "available"])
def test_what_has_not_begun_goes_back_at_once(world: World, strategy: str) -> None:
    for _ in range(60):
        world.store.add(f"process-{strategy}", QUEUES[0])
    # Tiny ones are sent ahead once this is known.
    for _ in range(8):
        world.begin()
        world.end("succeeded")
        world.calm()
    held = [job for job in world.store.jobs.values() if job.state == "running"]
    assert len(held) > 2
    world.begin()
    assert world.end("limited")
    for _ in range(10):
        world.turn()
        world.store_acts()
        world.store_answers()
    (refused,) = [job for job in held if job.state == "scheduled"]
    numbers = {job.settled[1] for job in held if job is not refused}
    assert refused.settled[1] > 0
    assert min(numbers) >= refused.settled[1], "each of them went back, though not one had begun"
