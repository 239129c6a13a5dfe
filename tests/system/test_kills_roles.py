"""What each death means: who notices, who takes over, and that nothing is left behind."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from headrace.errors import JobFailed
from headrace.model.job import State
from tests.processes import lives
from tests.servers import Server
from tests.system.fleet import LEASE, LONG_LEASE, Fleet, NewFleet, Worker, send


@pytest.fixture
def lease() -> float:
    """Its end is waited for. A worker that gets no processor for half of it stops its jobs."""
    return 2 * LEASE


@pytest.fixture
def patient(server: Server, new_fleet: NewFleet) -> Fleet:
    """A fleet whose leases end long after the test."""
    return new_fleet(server.url, lease=4 * LONG_LEASE)


def test_the_job_of_a_killed_runner_restarts_at_once(patient: Fleet, tmp_path: Path) -> None:
    kinds = ("process", "fork", "thread", "async")
    worker = patient.worker(kinds=",".join(kinds))
    jobs = [patient.enqueue(f"{kind}.gate", str(tmp_path / "go")) for kind in kinds]
    for job in jobs:
        patient.started(job)
    dispatcher = worker.dispatcher()
    send([patient.ledger.starts(job.id)[0].pid for job in jobs], signal.SIGKILL)
    # Long before the lease ends, and before it is renewed: nothing else can have told.
    for job in jobs:
        patient.started(job, times=2, timeout=LONG_LEASE)
    (tmp_path / "go").touch()
    assert [job.result(timeout=60) for job in jobs] == [2] * 4
    assert worker.dispatcher() == dispatcher


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """While this file exists, the system has no room for another process."""
    return tmp_path / "full"


def refused(worker: Worker, times: int = 1) -> bool:
    return worker.log().count("cannot fork a process") >= times


def test_a_runner_that_cannot_be_replaced_yet_costs_no_other_its_job(
    patient: Fleet, full: Path, tmp_path: Path
) -> None:
    worker = patient.worker(processes=2, environ={"HR_FULL": str(full)})
    job = patient.enqueue("process.gate", str(tmp_path / "go"))
    patient.started(job)
    busy = patient.ledger.starts(job.id)[0].pid
    full.touch()
    send([pid for pid in worker.runners() if pid != busy], signal.SIGKILL)
    # It is tried again, and again; meanwhile it works with what it has.
    patient.until(lambda: refused(worker, times=3))
    assert worker.runners() == [busy]
    full.unlink()
    patient.until(lambda: len(worker.runners()) == 2)
    (tmp_path / "go").touch()
    assert job.result(timeout=60) == 1
    worker.terminate()
    assert worker.wait() == 0


def test_a_dispatcher_that_cannot_be_replaced_yet_is_replaced_later(patient: Fleet, full: Path) -> None:
    worker = patient.worker(environ={"HR_FULL": str(full)})
    full.touch()
    worker.kill("dispatcher")
    patient.until(lambda: refused(worker))
    full.unlink()
    assert patient.enqueue("process.add", 1, 2).result(timeout=60) == 3


def test_a_worker_that_can_fork_nothing_still_stops(patient: Fleet, full: Path) -> None:
    full.touch()
    worker = patient.worker(ready=False, environ={"HR_FULL": str(full)})
    patient.until(lambda: refused(worker))
    worker.terminate()
    assert worker.wait() == 0


def test_when_the_supervisor_dies_nothing_is_left_and_the_job_is_settled(patient: Fleet, tmp_path: Path) -> None:
    worker = patient.worker(kinds="process,thread,async", processes=2)
    jobs = [patient.enqueue(f"{kind}.gate", str(tmp_path / "go")) for kind in ("process", "thread", "async")]
    for job in jobs:
        patient.started(job)
    worker.kill("supervisor")
    worker.wait()
    # Its dispatcher said what it knew and left: nobody waits for a lease.
    assert not patient.app.overview().workers
    assert {job.state for job in jobs} == {State.READY}
    assert {job.refresh().crashes for job in jobs} == {1}
    patient.worker(kinds="process,thread,async")
    (tmp_path / "go").touch()
    assert [job.result(timeout=60) for job in jobs] == [2, 2, 2]


def test_a_worker_that_sleeps_beyond_its_lease_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    """SIGSTOP, as a paused machine: its jobs run elsewhere, and its reports of them are too late, before and after an end."""
    zombie = fleet.worker(queues="default,mine", processes=2)
    jobs = [fleet.enqueue("process.gate", str(tmp_path / go)) for go in ("before", "after")]
    for job in jobs:
        fleet.started(job)
    stopped = zombie.stop_all()
    fleet.worker(processes=2)
    for job in jobs:
        fleet.started(job, times=2)
    (tmp_path / "before").touch()
    assert jobs[0].result(timeout=60) == 2
    send(stopped, signal.SIGCONT)
    # It begins a new life: what only it can do is done.
    assert fleet.enqueue("process.add", 1, 1, queue="mine").result(timeout=60) == 2
    (tmp_path / "after").touch()
    assert jobs[1].result(timeout=60) == 2
    for job in jobs:
        record = job.refresh()
        assert (record.crashes, record.failures, record.interruptions) == (1, 0, 0)
        assert len(fleet.ledger.starts(job.id)) == 2
    assert "lease" in zombie.log()


def test_the_runners_of_a_dispatcher_that_sleeps_end_before_its_lease(fleet: Fleet, tmp_path: Path) -> None:
    """They worked on beside the next starts of their jobs, so that a limit let two run where it says one."""
    zombie = fleet.worker(kinds="process,thread,fork", queues="default,mine")
    jobs = [fleet.enqueue(f"{kind}.gate", str(tmp_path / "go")) for kind in ("process", "thread", "fork")]
    for job in jobs:
        fleet.started(job)
    before = [psutil.Process(fleet.ledger.starts(job.id)[0].pid) for job in jobs]
    asleep = zombie.dispatcher()
    send([asleep], signal.SIGSTOP)
    fleet.worker(kinds="process,thread,fork")
    for job, process in zip(jobs, before, strict=True):
        fleet.started(job, times=2)
        assert not lives(process)
    (tmp_path / "go").touch()
    send([asleep], signal.SIGCONT)
    assert fleet.enqueue("process.add", 1, 1, queue="mine").result(timeout=60) == 2
    for job in jobs:
        job.result(timeout=60)
        assert len(fleet.ledger.ends(job.id)) == 1
        assert job.refresh().crashes == 1
    assert "killing its runners" in zombie.log()


def test_what_a_job_started_dies_with_its_runner_and_nothing_else(patient: Fleet, tmp_path: Path) -> None:
    worker = patient.worker(processes=2)
    job = patient.enqueue("process.children", str(tmp_path / "pids"), 3, max_crashes=1)
    neighbour = patient.enqueue("process.gate", str(tmp_path / "go"))
    patient.started(neighbour)
    patient.until((tmp_path / "pids").exists)
    grandchildren = [psutil.Process(int(pid)) for pid in (tmp_path / "pids").read_text().split()]
    assert all(child.is_running() for child in grandchildren)
    dispatcher = worker.dispatcher()
    send([patient.ledger.starts(job.id)[0].pid], signal.SIGKILL)
    assert patient.ended(job).state is State.QUARANTINED
    # Whoever adopted them may take its time to reap them.
    patient.until(lambda: not any(lives(child) for child in grandchildren))
    assert (worker.alive, worker.dispatcher()) == (True, dispatcher)
    (tmp_path / "go").touch()
    assert neighbour.result(timeout=60) == 1


def test_at_most_once_means_one_start_whatever_dies(patient: Fleet, tmp_path: Path) -> None:
    worker = patient.worker()
    for role in ("runner", "dispatcher"):
        job = patient.enqueue("process.gate", str(tmp_path / "go"), at_most_once=True)
        patient.started(job)
        worker.kill(role)
        with pytest.raises(JobFailed):
            job.result(timeout=60)
        assert len(patient.ledger.starts(job.id)) == 1
        patient.until(lambda: patient.app.overview().workers and worker.runners())
