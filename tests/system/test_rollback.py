"""A server that forgot the last moments of its life: a power cut, or a failover to a replica that was behind.

What it forgot is a piece of the end of its history, whole scripts. The tests cut it off the append-only file.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import Flow
from headrace.model.job import State
from headrace.model.workflow import WorkflowState
from headrace.tasks.job_handle import Job
from headrace.workflows.run import WorkflowRun
from tests.servers import Server
from tests.system.fleet import LONG_LEASE, Fleet, NewFleet, NewServer, send
from tests.system.test_flows import create, states

SEED = int(os.environ.get("HR_SEED", "20251"))


def diamond(flow: Flow) -> None:
    first = flow.run("process.nap", 0.01, name="first")
    middle = [flow.run("process.nap", 0.02, name=f"middle-{n}", after=first) for n in range(4)]
    grown = flow.run("process.graft", 3, "process", name="grown", after=first)
    more = flow.map("process.add", flow.run("process.numbers", 4, after=middle), 1, name="more")
    flow.run("process.total", more, name="last", after=[*middle, grown])


def work(fleet: Fleet, dice: random.Random) -> tuple[list[Job[Any]], list[WorkflowRun], Callable[[], int]]:
    """Jobs and workflows of each sort, and how many jobs are left."""
    jobs: list[Job[Any]] = fleet.enqueue_many("process.nap", [(dice.random() * 0.04,) for _ in range(150)])
    jobs += fleet.enqueue_many("process.fail", [(1,)] * 20, retries=2)
    jobs += fleet.enqueue_many("process.snooze", [(1,)] * 10)
    jobs += fleet.enqueue_many("async.nap", [(0.03,)] * 40)
    jobs += fleet.enqueue_many("thread.nap", [(0.03,)] * 30)
    jobs += [fleet.enqueue("process.nap", 0.01, key=f"k{n % 4}") for n in range(20)]
    for key in ("a", "b", "c"):
        jobs += fleet.enqueue_many("process.nap", [(0.01,)] * 25, key=key, ordered=True)
    runs: list[WorkflowRun] = [create(fleet, diamond) for _ in range(10)]

    def left() -> int:
        seen = fleet.app.overview().states
        return sum(seen.get(state, 0) for state in ("scheduled", "ready", "running"))

    return jobs, runs, left


def cut(fleet: Fleet, server: Server, dice: random.Random, left: Callable[[], int], away: float) -> list[Job[Any]]:
    """Let some work go on, then forget a part of it, from anywhere within; what was enqueued meanwhile."""
    begin, done = server.written, len(fleet.ledger.ends())
    late = fleet.enqueue_many("process.nap", [(0.02,)] * 5)
    more = done + dice.randint(5, 40)
    fleet.until(lambda: len(fleet.ledger.ends()) >= more or not left())
    server.forget(dice.randint(begin, server.written), away=away)
    return late


def all_succeed(fleet: Fleet, jobs: list[Job[Any]], runs: list[WorkflowRun]) -> None:
    """Everything ends, and no crash is charged."""
    fleet.drained(60)
    fleet.until(lambda: {job.state for job in jobs} == {State.SUCCEEDED}, 60)
    for run in runs:
        assert run.wait(60) is WorkflowState.SUCCEEDED, (states(run), repr(fleet))
    assert {job.refresh().crashes for job in jobs} == {0}, repr(fleet)
    assert all(node.job.crashes == 0 for run in runs for node in run.nodes(limit=100))
    assert all(run.node("last").result() == 10 for run in runs)
    fleet.end()
    fleet.check()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(SEED, SEED + int(os.environ.get("HR_ROUNDS", "1"))))
@pytest.mark.parametrize(("lease", "away"), [(LONG_LEASE, 0.0), (6.0, 8.0)])
def test_what_a_server_forgot_ends_all_the_same(
    new_server: NewServer, new_fleet: NewFleet, seed: int, lease: float, away: float
) -> None:
    """Plain jobs, retries, ordered jobs and workflows; the lease is so long that it helps nobody.

    Or the server is away for longer than a lease: the workers have stopped their jobs meanwhile, and told nobody yet.
    """
    dice = random.Random(seed)
    sys.stdout.write(f"seed {seed} (HR_SEED chooses another)\n")
    server = new_server(append_only=True)
    fleet = new_fleet(server.url, lease=lease, shutdown_timeout=5.0, result_ttl=3600, max_finished=10_000)
    jobs, runs, left = work(fleet, dice)
    fleet.forgetful = True
    for _ in range(2):
        fleet.worker(kinds="process,thread,async", processes=2)
    late: list[Job[Any]] = []
    for _ in range(2 if away else 4):
        late += cut(fleet, server, dice, left, away)
    # An enqueue that was acknowledged in these moments may be forgotten: that is the durability that was chosen.
    jobs += [job for job in late if server.client().exists(fleet.app.client.keys.job(job.id))]
    all_succeed(fleet, jobs, runs)


def test_a_claim_that_its_worker_does_not_know_goes_back(new_server: NewServer, new_fleet: NewFleet) -> None:
    """However it came about: each renewal compares how many there are."""
    server = new_server()
    fleet = new_fleet(server.url, lease=6.0)
    fleet.worker()
    (owner,) = [worker.owner for worker in fleet.app.overview().workers]
    job = fleet.enqueue("process.add", 1, 2, queue="elsewhere")
    client, keys = server.client(), fleet.app.client.keys
    client.zrem(keys("ready:elsewhere"), job.id)
    token = int(client.time()[0]) * 1_000_000
    client.hset(keys.job(job.id), mapping={"st": "running", "owner": owner, "token": token})
    client.zadd(keys(f"claims:{owner}"), {job.id: token})
    client.set(keys("token"), token)
    fleet.until(lambda: job.state is State.READY)
    record = job.refresh()
    assert (record.interruptions, record.crashes) == (1, 0)
    fleet.end()
    fleet.check()


@pytest.mark.parametrize("ended", [False, True])
def test_a_start_that_the_server_forgot_is_not_repeated(
    new_server: NewServer, new_fleet: NewFleet, tmp_path: Path, ended: bool
) -> None:
    """It goes on, or has ended: the worker knows, and says so as soon as the server is back."""
    server = new_server(append_only=True)
    fleet = new_fleet(server.url, lease=LONG_LEASE)
    fleet.worker()
    queue = fleet.app.queues["default"]
    queue.pause()
    job = fleet.enqueue("process.gate", str(tmp_path / "go"))
    size = server.written
    queue.resume()
    fleet.started(job)
    if ended:
        (tmp_path / "go").touch()
        fleet.ended(job)
    server.forget(size)
    fleet.until(lambda: job.state is (State.SUCCEEDED if ended else State.RUNNING))
    (tmp_path / "go").touch()
    assert job.result(timeout=60) == 1
    assert len(fleet.ledger.starts(job.id)) == 1
    fleet.end()
    fleet.check()


@pytest.mark.parametrize("ended", [False, True])
def test_all_starts_of_a_job_that_the_server_forgot_are_told_in_their_order(
    new_server: NewServer, new_fleet: NewFleet, tmp_path: Path, ended: bool
) -> None:
    """The server knows the first start as running, and neither its end nor the second start."""
    server = new_server(append_only=True)
    fleet = new_fleet(server.url, lease=LONG_LEASE)
    fleet.worker()
    job = fleet.enqueue("process.fail_once", str(tmp_path / "go"), retries=1)
    fleet.started(job)
    size = server.written
    (tmp_path / "go.0").touch()
    fleet.started(job, times=2)
    if ended:
        (tmp_path / "go.1").touch()
        fleet.ended(job)
    server.forget(size)
    fleet.until(lambda: job.refresh().failures == 1 and job.state is (State.SUCCEEDED if ended else State.RUNNING))
    (tmp_path / "go.1").touch()
    assert job.result(timeout=60) == 2
    assert len(fleet.ledger.starts(job.id)) == 2
    fleet.end()
    fleet.check()


def test_a_start_that_another_worker_has_repeated_is_stopped(
    new_server: NewServer, new_fleet: NewFleet, tmp_path: Path
) -> None:
    server = new_server(append_only=True)
    fleet = new_fleet(server.url, lease=LONG_LEASE)
    fleet.forgetful = True
    first = fleet.worker()
    queue = fleet.app.queues["default"]
    queue.pause()
    job = fleet.enqueue("process.gate", str(tmp_path / "go"))
    size = server.written
    queue.resume()
    fleet.started(job)
    # It sleeps while the other one claims, as if its network came back later.
    sleeping = first.stop_all()
    server.forget(size)
    queue.resume()
    fleet.worker()
    fleet.started(job, times=2)
    send(sleeping, signal.SIGCONT)
    fleet.until(lambda: "the server lost its start" in first.log())
    (tmp_path / "go").touch()
    record = fleet.ended(job)
    assert (record.state, record.crashes) == (State.SUCCEEDED, 0)
    fleet.end()
    fleet.check()


def test_a_worker_that_left_in_the_forgotten_moments_counts_a_crash_for_what_it_handed_back(
    new_server: NewServer, new_fleet: NewFleet, tmp_path: Path
) -> None:
    """No process is left that knows better; ``docs/faults.md`` names it among what is not promised."""
    server = new_server(append_only=True)
    fleet = new_fleet(server.url, lease=3.0, shutdown_timeout=0.1)
    fleet.forgetful = True
    first = fleet.worker()
    job = fleet.enqueue("process.gate", str(tmp_path / "go"))
    fleet.started(job)
    size = server.written
    first.terminate()
    first.wait()
    assert job.state is State.READY
    server.forget(size)
    assert job.state is State.RUNNING
    (tmp_path / "go").touch()
    fleet.worker()
    record = fleet.ended(job)
    assert (record.state, record.crashes, record.interruptions) == (State.SUCCEEDED, 1, 0)
    fleet.end()
    fleet.check()
