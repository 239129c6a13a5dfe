"""Limits in real workers: what they let start, also when a worker is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from headrace import Headrace
from tests.deadline import eventually
from tests.program import Program, Worker

pytestmark = pytest.mark.system

CODE = """
import os, time
from pathlib import Path
from headrace import Concurrency, Headrace, Rate, current_job

app = Headrace()
one = app.limit("one", Concurrency(1), by="account")
few = app.limit("few", Concurrency(3))
app.limit("rate", Rate(200, per=1))
app.limit("fair", by="key", queue="bulk")

def note(text):
    with open("notes", "a") as file:
        file.write(text + "\\n")

@app.task(limits=[one, few, "rate"], retries=1)
def call(account: str, number: int) -> int:
    note(f"S {account} {number} {os.getpid()}")
    time.sleep(0.01)
    note(f"E {account} {number} {os.getpid()}")
    return number

@app.task(limits=[one], kind="fork")
def hold(account: str) -> None:
    note(f"H {account} {os.getpid()}")
    while not Path("go").exists():
        time.sleep(0.005)

app.limit("pace", Rate(20, per=1))

@app.task(limits=["pace"])
def paced() -> int:
    return 2

@app.task(queue="bulk")
def share() -> None:
    note(f"K {current_job().key}")
    time.sleep(0.01)

@app.task
def free() -> int:
    return 1
"""


def notes(headrace: Program) -> list[list[str]]:
    path = headrace.directory / "notes"
    # What has no end yet is still being written.
    return [line.split() for line in path.read_text().rpartition("\n")[0].splitlines()] if path.exists() else []


def test_two_workers_keep_limits_together(headrace: Program, worker: Callable[..., Worker], app: Headrace) -> None:
    # Before there are limits in the store: they count for these jobs too.
    jobs = [app.by_name("tasks.call").enqueue(f"a{n % 5}", n) for n in range(20)]
    for _ in range(2):
        worker("--processes", "3", "--forks", "1", text=CODE)
    jobs += [app.by_name("tasks.call").enqueue(f"a{n % 5}", n) for n in range(20, 60)]
    assert [job.result(timeout=60) for job in jobs] == list(range(60))
    running: set[str] = set()
    for mark, account, *_ in notes(headrace):
        if mark == "S":
            assert account not in running, f"two jobs of {account} ran at once"
            running.add(account)
            assert len(running) <= 3
        else:
            running.discard(account)


def test_a_worker_goes_on_by_itself_when_its_limit_opens(
    headrace: Program, worker: Callable[..., Worker], app: Headrace
) -> None:
    """Each start closes the gate anew. A worker that missed that would start one job a renewal, each six seconds."""
    worker("--processes", "4", text=CODE)
    jobs = [app.by_name("tasks.paced").enqueue() for _ in range(20)]
    assert jobs[-1].result(timeout=60) == 2


def test_a_runner_that_is_killed_gives_its_slot_back(
    headrace: Program, worker: Callable[..., Worker], app: Headrace
) -> None:
    worker("--forks", "2", text=CODE)
    first = app.by_name("tasks.hold").enqueue("a")
    eventually(lambda: [line for line in notes(headrace) if line[0] == "H"], what="it holds")
    second, other = app.by_name("tasks.hold").enqueue("a"), app.by_name("tasks.free").enqueue()
    assert other.result(timeout=60) == 1
    (line,) = (line for line in notes(headrace) if line[0] == "H")
    os.kill(int(line[2]), signal.SIGKILL)
    (headrace.directory / "go").touch()
    for job in (first, second):
        job.result(timeout=60)
    assert len([line for line in notes(headrace) if line[0] == "H"]) == 3


def test_a_key_with_many_jobs_keeps_no_other_key_waiting(
    headrace: Program, worker: Callable[..., Worker], app: Headrace
) -> None:
    """A hundred jobs of the one key waited in the worker for the runner of that key, and no other was claimed."""
    hot, cold = (app.by_name("tasks.share", queue="bulk", key=key) for key in ("hot", "cold"))
    app.enqueue_many(hot.job() for _ in range(300))
    worker("--processes", "2", "--queues", "bulk", text=CODE)
    eventually(lambda: len(notes(headrace)) > 4)
    job = cold.enqueue()
    before = len(notes(headrace))
    job.result(timeout=60)
    lines = notes(headrace)
    assert lines.index(["K", "cold"]) - before < 10
    app.queues["bulk"].purge()
