"""An orderly end: running jobs finish within ``shutdown_timeout``, the rest goes back, no attempt is burned."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from headrace.model.job import State
from tests.servers import Server
from tests.system.fleet import ALL, KINDS, LONG_LEASE, Fleet, NewFleet, send


def test_what_runs_is_finished_and_nothing_else_is_begun(fleet: Fleet, tmp_path: Path) -> None:
    worker = fleet.worker(kinds=ALL)
    running = [fleet.enqueue(f"{kind}.gate", str(tmp_path / "go")) for kind in KINDS]
    for job in running:
        fleet.started(job)
    waiting = [fleet.enqueue(f"{kind}.add") for kind in ("process", "fork")]
    worker.terminate()
    fleet.until(lambda: "stops claiming" in worker.log())
    late = fleet.enqueue("thread.add")
    (tmp_path / "go").touch()
    assert worker.wait() == 0
    assert [job.result(timeout=1) for job in running] == [1] * 4
    assert {job.state for job in (*waiting, late)} == {State.READY}
    assert {job.refresh().attempt for job in (*waiting, late)} == {0}
    assert not fleet.app.overview().workers


def test_work_sent_ahead_is_handed_back_unharmed(fleet: Fleet) -> None:
    worker = fleet.worker(settings={"prefetch_seconds": 1})
    fleet.enqueue("process.nap", 0.001).result(timeout=60)
    runners = worker.runners()
    send(runners, signal.SIGSTOP)
    jobs = fleet.enqueue_many("process.nap", [(0.0,)] * 100)
    fleet.until(lambda: jobs[0].state is State.RUNNING)
    worker.terminate()
    fleet.until(lambda: {job.state for job in jobs} == {State.READY})
    send(runners, signal.SIGCONT)
    assert worker.wait() == 0
    assert {job.refresh().attempt for job in jobs} == {0}
    assert len(fleet.ledger.starts()) == 1


@pytest.mark.parametrize("ways", [("raises", "fails"), ("exits",), ("hangs",)])
def test_jobs_learn_of_a_shutdown_and_tidy_up_before_they_go_back(
    server: Server, new_fleet: NewFleet, ways: tuple[str, ...]
) -> None:
    """Whatever the tidying up comes to, the job goes back uncharged."""
    # To tidy up takes a moment, in which the machine may do something else.
    fleet = new_fleet(server.url, shutdown_timeout=10.0, kill_timeout=5.0, lease=LONG_LEASE)
    worker = fleet.worker(kinds=ALL, processes=len(ways), forks=len(ways), environ={"HR_CLEAN_UP": "2"})
    jobs = [fleet.enqueue(f"{kind}.tidy", how) for kind in KINDS for how in ways]
    for job in jobs:
        fleet.started(job)
    worker.terminate()
    assert worker.wait() == 0
    assert {job.state for job in jobs} == {State.READY}
    for job in jobs:
        record = job.refresh()
        assert (record.interruptions, record.crashes, record.failures) == (1, 0, 0)
        assert [len(fleet.ledger.lines(word, job.id)) for word in ("told", "tidy")] == [1, 1]
        (attempt,) = record.attempts
        assert attempt.outcome == "interrupted"
    fleet.worker(kinds=ALL)
    assert [job.result(timeout=60) for job in jobs] == [2] * len(jobs)


def test_a_signal_that_comes_twice_at_once_counts_once(fleet: Fleet, tmp_path: Path) -> None:
    worker = fleet.worker(environ={"HR_SAME_SIGNAL": "60"})
    job = fleet.enqueue("process.gate", str(tmp_path / "go"))
    fleet.started(job)
    worker.terminate()
    fleet.until(lambda: "stops claiming" in worker.log())
    worker.terminate()
    send([worker.pid], signal.SIGINT)
    (tmp_path / "go").touch()
    assert worker.wait() == 0
    assert job.result(timeout=1) == 1
    assert job.refresh().interruptions == 0


def test_a_second_signal_later_ends_the_shutdown_timeout(server: Server, new_fleet: NewFleet, tmp_path: Path) -> None:
    fleet = new_fleet(server.url, shutdown_timeout=100, lease=LONG_LEASE)
    worker = fleet.worker()
    job = fleet.enqueue("process.gate", str(tmp_path / "go"))
    fleet.started(job)
    worker.terminate()
    # When it was heard counts, not when it was sent.
    fleet.until(lambda: "stops claiming" in worker.log())
    first = time.monotonic()
    fleet.until(lambda: time.monotonic() > first + 1.2)
    assert worker.alive
    worker.terminate()
    assert worker.wait() == 0
    record = job.refresh()
    assert (record.state, record.interruptions, record.crashes) == (State.READY, 1, 0)


def test_an_idle_worker_leaves_at_once(fleet: Fleet) -> None:
    worker = fleet.worker(kinds=ALL, settings={"shutdown_timeout": 100.0})
    worker.terminate()
    asked = time.monotonic()
    assert worker.wait() == 0
    # Less than it waits for anybody.
    assert time.monotonic() - asked < 9
    assert "runners that do not exit" not in worker.log()
    assert not fleet.app.overview().workers


@pytest.mark.slow
def test_ten_rolling_deploys_under_load_burn_nothing(server: Server, new_fleet: NewFleet) -> None:
    """Some jobs take longer than ``shutdown_timeout``: those are interrupted, which is free, and none fails or crashes."""
    fleet = new_fleet(server.url, shutdown_timeout=0.2, lease=LONG_LEASE)
    jobs = fleet.enqueue_many("process.nap", [(0.02,)] * 20)
    workers = [fleet.worker(), fleet.worker()]
    for _ in range(10):
        jobs += fleet.enqueue_many("process.nap", [(0.6,) if n % 10 == 0 else (0.02,) for n in range(20)])
        fresh = fleet.worker()
        old = workers.pop(0)
        old.terminate()
        assert old.wait() == 0
        workers.append(fresh)
    fleet.drained(60)
    starts = fleet.ledger.counts()
    for job in jobs:
        record = job.refresh()
        assert (record.state, record.failures, record.crashes) == (State.SUCCEEDED, 0, 0)
        assert starts[job.id] == 1 + record.interruptions
