"""Limits and crashes with real runners: whatever a job does, it ends, and its neighbours go on."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import JobCancelled, JobFailed, JobQuarantined
from headrace.model.job import State
from headrace.model.job_record import Record
from headrace.protocol import produce
from headrace.tasks.job_handle import Job
from tests.servers import Server
from tests.system.fleet import ALL, KINDS, Fleet, NewFleet


def works_on(fleet: Fleet) -> None:
    """Whatever happened, each kind of runner still runs jobs."""
    jobs = [fleet.enqueue(f"{kind}.add", 1, 1) for kind in KINDS]
    assert [job.result(timeout=60) for job in jobs] == [2] * 4


def fails(job: Job[Any], match: str) -> Record:
    with pytest.raises(JobFailed, match=match):
        job.result(timeout=60)
    return job.refresh()


def test_time_limits_end_code_of_each_manner(fleet: Fleet) -> None:
    # What is killed has time to write where it was, and before that, that it caught its soft limit.
    fleet.worker(kinds=ALL, environ={"HR_SHOW": "2.5"})
    # It catches each Exception. A limit is an error like others, and may be retried.
    for job in [fleet.enqueue(f"{kind}.swallow", 30, timeout=1, hard_timeout=25, retries=1) for kind in KINDS]:
        record = fails(job, "SoftTimeLimit")
        assert (record.failures, record.crashes) == (2, 0)
        assert len(fleet.ledger.starts(job.id)) == 2
    works_on(fleet)
    # It lets no exception end it.
    for job in [fleet.enqueue(f"{kind}.stubborn", 60, timeout=3) for kind in KINDS]:
        record = fails(job, "HardTimeLimit")
        assert (record.failures, record.crashes) == (1, 0)
        # It is told where the job was when it was killed.
        assert record.error is not None
        assert "stubborn" in record.error.stderr or record.task == "async.stubborn", record.error
        assert fleet.ledger.lines("caught", job.id)
    works_on(fleet)
    # No exception reaches it.
    for job in [
        fleet.enqueue(task, 60, timeout=1) for task in ("process.hog", "fork.hog", "thread.hog", "async.block")
    ]:
        fails(job, "TimeLimit")
        assert len(fleet.ledger.starts(job.id)) == 1
    works_on(fleet)


def test_mates_of_a_killed_job_are_handed_back(fleet: Fleet, tmp_path: Path) -> None:
    fleet.worker(kinds="thread,async")
    mates = [fleet.enqueue(f"{kind}.gate", str(tmp_path / "go")) for kind in ("thread", "async") for _ in range(2)]
    for mate in mates:
        fleet.started(mate)
    for kind in ("thread", "async"):
        fails(fleet.enqueue(f"{kind}.stubborn", 60, timeout=3), "HardTimeLimit")
    for mate in mates:
        fleet.started(mate, times=2)
    (tmp_path / "go").touch()
    for mate in mates:
        mate.result(timeout=60)
        record = mate.refresh()
        assert (record.interruptions, record.failures, record.crashes) == (1, 0, 0)
        assert len(fleet.ledger.starts(mate.id)) == 2


def test_a_job_that_lets_nothing_else_run_for_two_leases_runs_once(server: Server, new_fleet: NewFleet) -> None:
    """Code that holds the interpreter, or the event loop: the lease is kept by another process."""
    fleet = new_fleet(server.url, lease=9.0)
    fleet.worker(kinds=ALL)
    fleet.worker(kinds=ALL)
    jobs = [fleet.enqueue(task, 19.0) for task in ("process.hog", "fork.hog", "thread.hog", "async.block")]
    for job in jobs:
        assert job.result(timeout=60) == 19.0
        assert len(fleet.ledger.starts(job.id)) == 1
        assert job.refresh().attempt == 1


def test_jobs_are_cancelled_before_they_start_and_while_they_run(fleet: Fleet) -> None:
    fleet.settings["kill_timeout"] = 5.0
    waiting = [fleet.enqueue(f"{kind}.add", 1, 1) for kind in KINDS]
    assert {job.cancel() for job in waiting} == {State.CANCELLED}
    fleet.worker(kinds=ALL)
    for manner in ("swallow", "stubborn"):
        jobs = [fleet.enqueue(f"{kind}.{manner}", 60, retries=3) for kind in KINDS]
        for job in jobs:
            fleet.started(job)
            # Begun is not yet within its handler.
            fleet.until(lambda job=job, manner=manner: manner == "swallow" or fleet.ledger.lines("armed", job.id))
        assert {job.cancel() for job in jobs} == {State.RUNNING}
        for job in jobs:
            with pytest.raises(JobCancelled):
                job.result(timeout=60)
            assert len(fleet.ledger.starts(job.id)) == 1
            assert bool(fleet.ledger.lines("caught", job.id)) == (manner == "stubborn")
    works_on(fleet)
    assert not any(fleet.ledger.starts(job.id) for job in waiting)


def test_cancellations_that_arrive_together_are_all_heard(fleet: Fleet) -> None:
    # With this lease no renewal tells of them in time: each must be read from the channel.
    fleet.worker(kinds="async", concurrency=40, settings={"lease": 600})
    jobs = [fleet.enqueue("async.nap", 60) for _ in range(40)]
    for job in jobs:
        fleet.started(job)
    fleet.app.store.run_all([produce.cancel(fleet.app.store.keys, job.id, 60_000_000) for job in jobs])
    for job in jobs:
        with pytest.raises(JobCancelled):
            job.result(timeout=60)


# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def memory_group() -> Iterator[dict[str, str]]:
    """A control group of 96 MiB where we may make one, so that the kernel really kills; else nothing (a stand-in)."""
    name, limit = f"headrace-test-{os.getpid()}", str(96 << 20)
    for root, file in (
        (Path("/sys/fs/cgroup"), "memory.max"),
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    ):
        group = root / name
        with contextlib.suppress(OSError):
            group.mkdir()
            try:
                if not (group / file).exists():
                    continue
                (group / file).write_text(limit)
                for swap in ("memory.swap.max", "memory.memsw.limit_in_bytes"):
                    with contextlib.suppress(OSError):
                        (group / swap).write_text(limit if "memsw" in swap else "0")
                yield {"HR_MEMORY_GROUP": str(group)}
                return
            finally:
                with contextlib.suppress(OSError):
                    group.rmdir()
    yield {}


CRASHES: dict[str, tuple[int | None, int | None]] = {
    "exit": (None, 7),
    "segfault": (signal.SIGSEGV, None),
    "kill": (signal.SIGKILL, None),
}


def test_crashes_are_quarantined_with_their_evidence(fleet: Fleet) -> None:
    fleet.worker(kinds=ALL)
    for how, (number, code) in CRASHES.items():
        for job in [fleet.enqueue(f"{kind}.crash", how, max_crashes=2) for kind in KINDS]:
            with pytest.raises(JobQuarantined):
                job.result(timeout=60)
            record = job.refresh()
            assert (record.crashes, record.failures) == (2, 0)
            assert len(fleet.ledger.starts(job.id)) == 2
            error = record.error
            assert error is not None
            assert (error.type, error.signal, error.exit_code, error.attempt) == ("Crashed", number, code, 2)
            assert error.peak_memory is not None
            assert error.peak_memory > 5 << 20
            assert f"about to {how}" in error.stderr
            assert ("Segmentation fault" in error.stderr) == (how == "segfault")
    # The dispatcher once took the first bytes for the length of a message, and waited for that for ever.
    for job in [fleet.enqueue(f"{kind}.rubbish", 1, max_crashes=2) for kind in KINDS]:
        with pytest.raises(JobQuarantined, match="a job wrote into a descriptor of the runner"):
            job.result(timeout=60)
        assert len(fleet.ledger.starts(job.id)) == 2
    once = [fleet.enqueue(f"{kind}.crash", "exit", 1) for kind in KINDS]
    assert [job.result(timeout=60) for job in once] == [2] * 4
    assert {job.refresh().crashes for job in once} == {1}
    works_on(fleet)


def test_a_job_that_is_killed_for_its_memory_is_quarantined(fleet: Fleet, memory_group: dict[str, str]) -> None:
    """A real kill by the kernel where a control group can be made; elsewhere an own limit and SIGKILL stand in."""
    fleet.worker(environ=memory_group)
    job = fleet.enqueue("process.crash", "memory", max_crashes=2)
    with pytest.raises(JobQuarantined):
        job.result(timeout=60)
    error = job.refresh().error
    assert error is not None
    assert error.signal == signal.SIGKILL
    assert error.peak_memory is not None
    assert error.peak_memory > 60 << 20
    if memory_group:
        events = Path(memory_group["HR_MEMORY_GROUP"], "memory.oom_control")
        assert not events.exists() or "oom_kill 2" in events.read_text()
    assert fleet.enqueue("process.add", 1, 1).result(timeout=60) == 2
