"""What a job started ends with it, and a kill never reaches the worker itself: WS11, WS13."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from headrace.errors import JobFailed
from tests.processes import lives
from tests.program import Program
from tests.system.fleet import Fleet, send

pytestmark = pytest.mark.system


WATCHED = """
import os, time
from headrace import Headrace

app = Headrace()
# Runs in each child before all else, so that what is seen meanwhile is its parent's doing.
os.register_at_fork(after_in_child=lambda: time.sleep(0.5))

@app.after_fork_parent
def look() -> None:
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as found, open("groups", "a") as out:
        for pid in found.read().split():
            out.write(f"{pid} {os.getpgid(int(pid))}\\n")

@app.task
def who() -> int:
    return os.getpid()
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="this system does not tell the children of a process")
def test_a_runner_is_in_a_group_of_its_own_before_it_can_be_killed(tmp_path: Path, url: str) -> None:
    headrace = Program(tmp_path, url)
    headrace.write("watched", WATCHED)
    id = headrace.enqueue("watched.who")
    headrace.fresh("worker", "watched:app", "--burst", "--processes", "1")
    pid = headrace("jobs", "show", id, "--json").json["result"]
    groups = [line.split() for line in (tmp_path / "groups").read_text().splitlines()]
    assert next(group for child, group in groups if child == str(pid)) == str(pid)


def test_a_frozen_job_ends_at_its_hard_limit_with_all_that_it_started_and_nothing_else(
    fleet: Fleet, tmp_path: Path
) -> None:
    worker = fleet.worker(kinds="fork", forks=2)
    dispatcher = worker.dispatcher()
    job = fleet.enqueue("fork.children", str(tmp_path / "pids"), 3, timeout=10)
    fleet.until((tmp_path / "pids").exists)
    started = [psutil.Process(int(pid)) for pid in (tmp_path / "pids").read_text().split()]
    frozen = psutil.Process(fleet.ledger.starts(job.id)[0].pid)
    send([frozen.pid, *(child.pid for child in started)], signal.SIGSTOP)
    with pytest.raises(JobFailed, match="HardTimeLimit"):
        job.result(timeout=60)
    fleet.until(lambda: not any(lives(process) for process in (frozen, *started)))
    assert (worker.alive, worker.dispatcher()) == (True, dispatcher)
    assert fleet.enqueue("fork.add", 1, 1).result(timeout=60) == 2
