"""``with app.worker():``: a worker that a program forks, and that ends with the block."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import Headrace, current_job
from headrace.errors import OptionsError
from tests.deadline import eventually
from tests.processes import lives

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

# As a notebook would: the tasks are in no module that a worker could import.
NOTEBOOK = """
import os, sys
from headrace import Headrace, current_job

app = Headrace(sys.argv[1])
PLACE = "the notebook"

@app.task(name="process", kind="process")
def process(n: int) -> str:
    return f"{PLACE} {n}"

@app.task(name="thread", kind="thread")
def thread(n: int) -> str:
    return f"{PLACE} {n}"

@app.task(name="fork", kind="fork")
def fork(n: int) -> str:
    return f"{PLACE} {n}"

@app.task(name="coroutine")
async def coroutine(n: int) -> str:
    return f"{PLACE} {n}"

print(process.enqueue(0).state)
with app.worker(threads=2, processes=1) as pid:
    jobs = [task.enqueue(1) for task in (process, thread, fork, coroutine)]
    print([job.result(timeout=60) for job in jobs])
print(process.enqueue(0).state, os.path.exists(f"/proc/{pid}"))
if sys.argv[2:]:
    with app.worker() as pid:
        print(pid, flush=True)
        sys.stdin.read()
"""


def run(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    program = tmp_path / "notebook.py"
    program.write_text(NOTEBOOK)
    return subprocess.Popen(
        [sys.executable, str(program), *words], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def test_tasks_of_a_program_run_in_each_kind_within_the_block(url: str, tmp_path: Path) -> None:
    with run(tmp_path, url) as program:
        said, _ = program.communicate(timeout=100)
    assert said.splitlines() == ["ready", str(["the notebook 1"] * 4), "ready False"]


def test_the_worker_of_a_killed_program_ends(url: str, tmp_path: Path) -> None:
    with run(tmp_path, url, "stay") as program:
        assert program.stdout is not None
        pid = int([program.stdout.readline() for _ in range(4)][-1])
        assert lives(pid)
        program.kill()
    eventually(lambda: not lives(pid), 60)


def test_a_running_job_ends_with_the_block(app: Headrace, tmp_path: Path) -> None:
    go = tmp_path / "go"

    @app.task(name="stay", kind="thread")
    def stay() -> str:
        go.touch()
        current_job().stopping.wait(60)
        return "in order"

    with app.worker():
        job = stay.enqueue()
        eventually(go.exists, 60)
    assert job.result(timeout=0) == "in order"


def test_a_worker_without_tasks_or_with_a_wrong_size_is_refused(app: Headrace) -> None:
    with pytest.raises(OptionsError, match="no task"), app.worker():
        pass
    app.task(name="one")(asyncio.sleep)
    with pytest.raises(OptionsError, match="thread"), app.worker(thread=1):
        pass
