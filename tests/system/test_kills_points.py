"""Kill points: one job, killed at each step of its life by the death of each role, and how often it may start.

==========================  =======  ==========  ==========  ======
killed                      runner   dispatcher  supervisor  worker
==========================  =======  ==========  ==========  ======
before the claim's reply    1, free  1, crash    1, free     1, crash
after the claim             1, free  1, crash    1, free     1, crash
while it runs               2, crash 2, crash    2, crash    2, crash
returned, not settled       1, free  2, crash    1, free     2, crash
settled, reply lost         1, free  1, free     1, free     1, free
==========================  =======  ==========  ==========  ======

The number counts starts of the job's code; *crash* says that one of the crash budget is used up.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import redis

from headrace.model.job import State
from headrace.tasks.job_handle import Job
from tests.processes import lives
from tests.program import serving
from tests.system.fleet import PATIENCE, Fleet, Worker, send
from tests.system.tap import Tap

ROLES = ("runner", "dispatcher", "supervisor", "worker")
PROMISED = {
    "claiming": {"runner": (1, 0), "dispatcher": (1, 1), "supervisor": (1, 0), "worker": (1, 1)},
    "claimed": {"runner": (1, 0), "dispatcher": (1, 1), "supervisor": (1, 0), "worker": (1, 1)},
    "running": {"runner": (2, 1), "dispatcher": (2, 1), "supervisor": (2, 1), "worker": (2, 1)},
    "returned": {"runner": (1, 0), "dispatcher": (2, 1), "supervisor": (1, 0), "worker": (2, 1)},
    "settled": {"runner": (1, 0), "dispatcher": (1, 0), "supervisor": (1, 0), "worker": (1, 0)},
}


def _lease(fleet: Fleet, role: str) -> None:
    """A short lease only where another worker waits for its end.

    A worker stops its jobs when it gets no processor for half of it, and gives a request up after a third of it, five
    seconds at most: the kill comes before.
    """
    fleet.settings["lease"] = 15.0 if role == "worker" else 60.0


def _kill(fleet: Fleet, worker: Worker, role: str) -> None:
    worker.kill(role)
    if role in ("supervisor", "worker"):
        fleet.worker(ready=False)


def _settled(fleet: Fleet, worker: Worker, job: Job[int], point: str, role: str) -> None:
    record = fleet.ended(job)
    starts, crashes = PROMISED[point][role]
    assert (record.state, record.crashes) == (State.SUCCEEDED, crashes)
    assert record.failures == record.interruptions == 0
    assert len(fleet.ledger.starts(job.id)) == starts
    if role in ("supervisor", "worker"):
        worker.wait()
        # Nobody is told that it left in order.
        fleet.until(lambda: fleet.app.events.page(["worker_lost"]).rows)
        assert not fleet.app.events.page(["worker_stopped"]).rows
    else:
        # Who was killed was replaced: the worker works on.
        assert fleet.enqueue("process.add", 1, 1).result(timeout=PATIENCE) == 2


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("point", "script", "side"),
    [("claiming", "claim", "reply"), ("returned", "settle", "request"), ("settled", "settle", "reply")],
)
def test_a_kill_around_a_request(fleet: Fleet, tap: Tap, role: str, point: str, script: str, side: str) -> None:
    _lease(fleet, role)
    job = fleet.enqueue("process.add", 20, 22)
    trap = tap.trap(script, side)
    worker = fleet.worker(url=tap.url, ready=False)
    assert trap.sprung.wait(PATIENCE), repr(worker)
    fleet.until(worker.runners)
    fleet.until(lambda: serving() in worker.log())
    _kill(fleet, worker, role)
    if role in ("runner", "supervisor"):
        trap.release()
    else:
        trap.drop()
    assert job.result(timeout=PATIENCE) == 42
    _settled(fleet, worker, job, point, role)


@pytest.mark.parametrize("role", ROLES)
def test_a_kill_after_the_claim(fleet: Fleet, role: str) -> None:
    _lease(fleet, role)
    worker = fleet.worker()
    send(worker.runners(), signal.SIGSTOP)
    job = fleet.enqueue("process.add", 20, 22)
    fleet.until(lambda: job.state is State.RUNNING)
    _kill(fleet, worker, role)
    assert job.result(timeout=PATIENCE) == 42
    _settled(fleet, worker, job, "claimed", role)


def test_a_kill_of_the_supervisor_before_the_dispatcher_reads_its_claim(fleet: Fleet, client: redis.Redis) -> None:
    """It heard of the claim and of the death in one turn, and charged a crash of a job that it had sent to no runner."""
    _lease(fleet, "supervisor")
    worker = fleet.worker()
    # Its claim waits at the server, which needs no dispatcher to answer it.
    fleet.until(lambda: client.info("clients")["blocked_clients"])
    dispatcher = [worker.dispatcher()]
    send(dispatcher, signal.SIGSTOP)
    job = fleet.enqueue("process.add", 20, 22)
    fleet.until(lambda: job.state is State.RUNNING)
    _kill(fleet, worker, "supervisor")
    send(dispatcher, signal.SIGCONT)
    assert job.result(timeout=PATIENCE) == 42
    _settled(fleet, worker, job, "claimed", "supervisor")


@pytest.mark.parametrize("role", ROLES)
def test_a_kill_while_it_runs(fleet: Fleet, role: str, tmp_path: Path) -> None:
    _lease(fleet, role)
    worker = fleet.worker()
    job = fleet.enqueue("process.gate", str(tmp_path / "go"))
    fleet.started(job)
    (runner,) = worker.runners()
    _kill(fleet, worker, role)
    # Nothing runs on that nobody could settle: the old runner is ended first.
    fleet.started(job, times=2)
    assert not lives(runner)
    (tmp_path / "go").touch()
    assert job.result(timeout=PATIENCE) == 2
    _settled(fleet, worker, job, "running", role)


def test_one_that_dies_before_it_took_over_leaves_all_to_the_next(fleet: Fleet, tap: Tap, tmp_path: Path) -> None:
    """The job of the first dispatcher waited for the end of its lease: the third had heard of the second alone."""
    fleet.settings["lease"] = 600.0
    worker = fleet.worker(url=tap.url)
    job = fleet.enqueue("process.gate", str(tmp_path / "go"))
    fleet.started(job)
    trap = tap.trap("reclaim", "request")
    worker.kill("dispatcher")
    assert trap.sprung.wait(PATIENCE), repr(worker)
    worker.kill("dispatcher")
    trap.drop()
    fleet.started(job, times=2)
    (tmp_path / "go").touch()
    assert job.result(timeout=PATIENCE) == 2
    assert job.refresh().crashes == 1


@pytest.mark.parametrize(
    ("script", "side"),
    [("register", "reply"), ("renew", "request"), ("claim", "reply"), ("settle", "reply")],
)
def test_a_lost_request_or_reply_changes_nothing(fleet: Fleet, tap: Tap, script: str, side: str) -> None:
    """The connection breaks instead of a process: the request is repeated with its number."""
    jobs = fleet.enqueue_many("process.add", [(n, 1) for n in range(20)])
    trap = tap.trap(script, side)
    fleet.worker(url=tap.url, ready=False, processes=2)
    assert trap.sprung.wait(PATIENCE), repr(fleet)
    trap.drop()
    assert [job.result(timeout=PATIENCE) for job in jobs] == [n + 1 for n in range(20)]
    assert set(fleet.ledger.counts().values()) == {1}
    assert {job.refresh().attempt for job in jobs} == {1}


def test_a_connection_that_falls_silent_is_given_up(fleet: Fleet, tap: Tap) -> None:
    """Half-open: nothing is closed, and nothing is answered any more. Each request has a deadline of our own."""
    fleet.settings["lease"] = 6.0
    job = fleet.enqueue("process.add", 20, 22)
    trap = tap.trap("settle", "reply")
    worker = fleet.worker(url=tap.url, ready=False)
    assert trap.sprung.wait(PATIENCE), repr(worker)
    assert job.result(timeout=PATIENCE) == 42
    assert fleet.enqueue("process.add", 1, 1).result(timeout=PATIENCE) == 2
    assert not trap.opened.is_set()
    assert set(fleet.ledger.counts().values()) == {1}
