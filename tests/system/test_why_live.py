"""What a worker that lives tells of the jobs that it holds or leaves waiting: ``job.why()`` beside real processes."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from headrace import Headrace
from tests.system.fleet import Fleet, send

pytestmark = pytest.mark.system


@pytest.fixture
def lease() -> float:
    """Heartbeats, which tell what runners do, come each 0.4 of it."""
    return 9.0


def test_jobs_that_run_wait_in_the_worker_and_wait_for_it(fleet: Fleet, tmp_path: Path) -> None:
    worker = fleet.worker(processes=2)
    paths = [tmp_path / name for name in "abc"]
    first, second = (fleet.enqueue("process.gate", str(path), key="k") for path in paths[:2])
    fleet.until(lambda: len(fleet.ledger.starts()) == 1)
    runs, waits = (first, second) if fleet.ledger.starts(first.id) else (second, first)
    # What its runners do a worker tells with its heartbeat.
    fleet.until(lambda: runs.why().reasons[0].evidence.get("pid") in worker.runners())
    assert runs.why().code == "runs"
    # With this strategy it waits in the worker for the runner of its key.
    fleet.until(lambda: waits.why().code == "sent_ahead")
    assert waits.why().reasons[0].evidence["job"] == runs.id
    fleet.started(fleet.enqueue("process.gate", str(paths[2])))
    last = fleet.enqueue("process.noop")
    fleet.until(lambda: last.why().code == "all_busy")
    assert asyncio.run(_asked(fleet.url, last.id)) == fleet.app.jobs.why(last.id).code == "all_busy"
    worker.terminate()
    fleet.until(lambda: last.why().code == "draining")
    for path in paths:
        path.touch()
    assert worker.wait() == 0
    assert last.why().code == "no_worker_serves"


async def _asked(url: str, id: str) -> str:
    async with Headrace(url) as app:
        return (await app.job(id).awhy()).code


def test_a_job_that_is_cancelled_while_its_worker_does_not_answer(fleet: Fleet, tmp_path: Path) -> None:
    worker = fleet.worker(processes=1)
    job = fleet.enqueue("process.gate", str(tmp_path / "open"))
    fleet.started(job)
    pid = worker.dispatcher()
    send([pid], signal.SIGSTOP)
    try:
        job.cancel()
        assert job.why().code == "asked_to_stop"
        fleet.until(lambda: job.why().code == "owner_silent")
        # A worker that is there, renews and does not claim: what is ready for it has a reason, whatever it is.
        assert fleet.enqueue("process.noop").why().code == "no_worker_serves"
    finally:
        os.kill(pid, signal.SIGCONT)
    fleet.until(lambda: job.state.final)


def test_a_job_that_goes_on_behind_its_soft_limit_says_when_it_is_killed(fleet: Fleet) -> None:
    fleet.worker(processes=1)
    job = fleet.enqueue("process.stubborn", 300, timeout=0.5, hard_timeout=200)
    fleet.until(lambda: job.why().code == "asked_to_stop")
    found = job.why().reasons[0]
    kill, soft = (int(found.evidence[name]) for name in ("kill_us", "soft_us"))
    assert kill - soft == pytest.approx(199.5e6, abs=10)
    assert "its soft limit was over" in found.text
    # A cancellation brings the end nearer.
    job.cancel()
    fleet.until(lambda: job.state.final)
    assert job.why().code == "ended"
