"""A pool inside of a job: what ends the job ends what the pool runs for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import Headrace, Pool
from headrace.errors import CancelRequested, Interrupt, JobInterrupted, Snooze, SoftTimeLimit
from headrace.model.job import State
from tests.deadline import eventually
from tests.pool import chores
from tests.program import Program

POOLED = """
import time
from headrace import Headrace, Pool

app = Headrace()

@app.task(timeout=3)
def call() -> None:
    with Pool(1, kind="process") as pool:
        pool.wait_ready()
        pool.call(time.sleep, 600)

@app.task(timeout=3)
def submit() -> None:
    with Pool(1, kind="process") as pool:
        pool.wait_ready()
        pool.submit(time.sleep, 600).result()
"""


@pytest.mark.parametrize("stop", [SoftTimeLimit, JobInterrupted, CancelRequested])
def test_what_stops_a_job_interrupts_the_calls_of_its_pool(tmp_path: Path, stop: type[Interrupt]) -> None:
    with pytest.raises(stop), Pool(1, kind="process", shutdown_timeout=60) as pool:
        call = pool.submit(chores.sleep_and_clean_up, tmp_path)
        waits = pool.submit(chores.sleep_and_clean_up, tmp_path)
        eventually((tmp_path / "pids").exists, what="the call runs")
        raise stop
    assert (tmp_path / "cleaned").exists(), "it was interrupted, not killed"
    assert call.done()
    assert waits.cancelled()


def test_a_job_that_leaves_by_itself_waits_for_its_pool() -> None:
    with pytest.raises(Snooze), Pool(1) as pool:
        call = pool.submit(sum, [1, 2])
        raise Snooze(1)
    assert call.result() == 3


@pytest.mark.system
@pytest.mark.parametrize("task", ["call", "submit"])
def test_a_job_with_a_pool_ends_at_its_soft_limit(tmp_path: Path, url: str, task: str) -> None:
    program = Program(tmp_path, url, own=True)
    program.write("pooled", POOLED)
    with Headrace(url) as app:
        job = app.by_name(f"pooled.{task}").enqueue()
        program("worker", "pooled:app", "--burst")
        record = job.refresh()
    assert record.state is State.FAILED
    assert record.error is not None
    assert record.error.type.endswith("SoftTimeLimit"), record.error
