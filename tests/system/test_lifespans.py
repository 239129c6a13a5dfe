"""Lifespans in real workers: state in every kind, starts that fail or take long, shutdown, recycling, reload."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from headrace import Headrace
from headrace.protocol.overviews import WorkerFacts
from tests.deadline import eventually
from tests.program import Program, Worker

pytestmark = pytest.mark.system

CODE = """
import asyncio, os, threading, time
from pathlib import Path
from headrace import Headrace, current_job

app = Headrace()

def note(text):
    with open("notes", "a") as file:
        file.write(f"{text} {os.getpid()}\\n")

def until(name):
    while not Path(name).exists():
        time.sleep(0.005)

def state():
    return [os.getpid(), dict(current_job().state or {})]

@app.task(timeout=10)
def process() -> list: return state()

@app.task(kind="fork")
def fork() -> list: return state()

@app.task(kind="thread", timeout=10)
def thread() -> list: return state()

@app.task(timeout=5)
async def loop() -> list:
    assert current_job().state["loop"] is asyncio.get_running_loop()
    return [os.getpid(), {"pid": current_job().state["pid"]}]

@app.task
def hold() -> None:
    note("holds")
    until("go on")
"""
EACH = """
@app.lifespan
def each():
    note("in")
    yield {"pid": os.getpid()}
    note("out")

@app.lifespan(kind="async")
async def on_loop():
    yield {"loop": asyncio.get_running_loop()}
    await asyncio.sleep(0)
    note("loop out")
"""
PATIENT = """
from headrace.worker.runner import runner_process
leave = runner_process._leave
runner_process._leave = lambda work, app, lifespans, _: leave(work, app, lifespans, 60)
"""
MAIL = """
from headrace import Tasks, current_job
tasks = Tasks()

@tasks.lifespan(kind="thread")
def smtp():
    yield {"smtp": "open"}

@tasks.task(kind="thread")
def send() -> str:
    return current_job().state["smtp"]
"""
TASKS = ("process", "fork", "thread", "loop")


def notes(headrace: Program) -> list[tuple[str, int]]:
    path = headrace.directory / "notes"
    # What has no end yet is still being written.
    lines = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
    return [(line.rpartition(" ")[0], int(line.rpartition(" ")[2])) for line in lines]


def test_each_runner_of_every_kind_enters_before_its_jobs_and_leaves_after_them(
    headrace: Program, worker: Callable[..., Worker], app: Headrace
) -> None:
    headrace.write("mail", MAIL)
    one = worker("--forks", "1", text=f"{CODE}{EACH}\nimport mail\napp.include(mail.tasks)\n")
    # One runner of each kind enters, in any order; then one more.
    eventually(lambda: len(notes(headrace)) == 4, 60)
    one.process.send_signal(signal.SIGTTIN)
    eventually(lambda: len(notes(headrace)) == 5, 60)
    jobs = [app.by_name(f"tasks.{name}").enqueue() for name in TASKS for _ in range(6)]
    for job in jobs:
        pid, state = job.result(timeout=60)
        assert {name: value for name, value in state.items() if name != "smtp"} == {"pid": pid}
    assert {job.refresh().attempt for job in jobs} == {1}
    assert app.by_name("mail.send").enqueue().result(timeout=60) == "open"
    one.process.send_signal(signal.SIGTTOU)
    eventually(lambda: "out" in [word for word, _ in notes(headrace)], 60)
    assert one.stop() == 0
    seen = notes(headrace)
    entered = [pid for word, pid in seen if word == "in"]
    assert sorted(entered) == sorted(pid for word, pid in seen if word == "out")
    assert len(entered) == len(set(entered)) >= 2 + 6 + 1 + 1
    assert [word for word, _ in seen].count("loop out") == 1


@pytest.mark.parametrize("hook", ["lifespan", "after_fork_child"])
def test_a_start_that_fails_charges_no_job_and_is_tried_again_until_it_succeeds(
    headrace: Program, worker: Callable[..., Worker], app: Headrace, hook: str
) -> None:
    raises = "if not Path('up').exists(): raise ConnectionError('no database')"
    end = "    yield\n" if hook == "lifespan" else ""
    text = f"\n@app.{hook}\ndef database():\n    {raises}\n{end}"
    one = worker("--forks", "1", "--threads", "4", text=CODE + text)
    kinds = ("process", "fork", "thread") if hook == "lifespan" else ("process", "thread")
    jobs = [app.by_name(f"tasks.{name}").enqueue() for name in kinds]
    for _ in range(3):
        if hook == "lifespan":
            one.says("lifespan tasks.database cannot be entered: ConnectionError: no database: this runner is replaced")
        else:
            one.says("ConnectionError: no database")
        one.lines.clear()
    (headrace.directory / "up").touch()
    for job in jobs:
        job.result(timeout=60)
        record = job.refresh()
        assert (record.attempt, record.crashes, record.failures) == (1, 0, 0)


def test_a_start_slower_than_lease_and_limits_loses_neither_lease_nor_job(
    headrace: Program, worker: Callable[..., Worker], app: Headrace
) -> None:
    """Jobs that wait for it are not claimed, so no limit of theirs runs; the other kinds of the worker work on."""
    headrace.environment["HEADRACE_LEASE"] = "5"
    code = "    until('up')\n    yield {'loop': asyncio.get_running_loop(), 'pid': 0}\n"
    worker(text=f"{CODE}\n@app.lifespan(kind='async')\ndef slow():\n{code}")
    eventually(lambda: app.overview().workers, 60)
    (before,) = app.overview().workers
    waits = app.by_name("tasks.loop").enqueue()
    for leases in (1, 2):
        # Each takes less than its limit, and the lease is renewed meanwhile.
        app.by_name("tasks.process").enqueue().result(timeout=60)
        eventually(lambda leases=leases: renewed(app, before) >= leases * 5_000_000, 60)  # type: ignore[misc]
    app.by_name("tasks.process").enqueue().result(timeout=60)
    assert waits.state == "ready"
    (headrace.directory / "up").touch()
    assert waits.result(timeout=60)[1] == {"pid": 0}
    assert waits.refresh().attempt == 1


def renewed(app: Headrace, before: WorkerFacts) -> int:
    """By how much the lease of the same worker has grown since, in microseconds."""
    (seen,) = app.overview().workers
    assert seen.owner == before.owner
    return seen.lease - before.lease


def test_a_worker_that_is_stopped_while_runners_start_ends(headrace: Program, worker: Callable[..., Worker]) -> None:
    text = """
@app.lifespan(kind="process")
def slow():
    note("starts")
    until("never")
    yield

@app.lifespan
async def aslow():
    note("starts")
    await asyncio.Event().wait()
    yield
"""
    one = worker(text=CODE + text)
    eventually(lambda: len(notes(headrace)) == 2, 60)
    assert one.stop() == 0


def test_a_job_that_runs_at_shutdown_ends_before_the_lifespan_is_left(
    headrace: Program, worker: Callable[..., Worker], app: Headrace
) -> None:
    one = worker(text=CODE + EACH)
    job = app.by_name("tasks.hold").enqueue()
    eventually(lambda: "holds" in [word for word, _ in notes(headrace)], 60)
    one.process.send_signal(signal.SIGTERM)
    one.says("stops claiming")
    ((_, pid),) = [seen for seen in notes(headrace) if seen[0] == "holds"]
    assert ("out", pid) not in notes(headrace)
    (headrace.directory / "go on").touch()
    assert one.ended() == 0
    assert job.state == "succeeded"
    assert notes(headrace)[-1][0] in ("out", "loop out")
    assert ("out", pid) in notes(headrace)


def test_no_limit_of_a_job_runs_while_its_runner_leaves(
    headrace: Program, worker: Callable[..., Worker], app: Headrace
) -> None:
    """Nor does the next job wait for it: its child comes from the supervisor."""
    code = "yield {}\n    note('leaves')\n    until('up')\n    note('left')\n"
    worker("--forks", "1", text=f"{CODE}{PATIENT}\n@app.lifespan(kind='fork')\ndef slow():\n    {code}")
    for _ in range(3):
        job = app.by_name("tasks.fork", timeout=5, hard_timeout=5.5).enqueue()
        job.result(timeout=60)
        assert job.refresh().attempt == 1
    eventually(lambda: len(notes(headrace)) == 3, 60)
    # The hard limit of the job that ended last would be over.
    limit = time.monotonic() + 5.5
    eventually(lambda: time.monotonic() > limit, 60)
    (headrace.directory / "up").touch()
    eventually(lambda: [word for word, _ in notes(headrace)].count("left") == 3, 60)
