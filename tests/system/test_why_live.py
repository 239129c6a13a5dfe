"""What a worker that lives tells of the jobs that it holds or leaves waiting: ``job.why()`` beside real processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace import Headrace
from tests.system.fleet import Fleet

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
