"""``headrace worker --reload``: what is saved runs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.model.job import State
from tests.deadline import eventually
from tests.servers import Server
from tests.system.rolled import GOOD, STUCK, Rolled, result

pytestmark = pytest.mark.system


def now(rolled: Rolled, version: int) -> bool:
    """Whether the code of a version runs jobs."""
    return bool(result(rolled.enqueue("nap", 0)) == version)


def test_what_is_saved_runs_and_a_mistake_is_shown_and_mended_by_the_next_save(rolled: Rolled, tmp_path: Path) -> None:
    """It may begin with a mistake, and even without the module."""
    here = tmp_path / "here"
    here.mkdir()
    rolled.program.directory = here
    worker = rolled.start("--reload", ready=False)
    worker.says("there is no module 'tasks'")
    rolled.program.write("tasks", "from shop import prices\n" + GOOD.format(version=1))
    worker.says("No module named 'shop'")
    (here / "shop").mkdir()
    (here / "shop" / "__init__.py").touch()
    (here / "shop" / "prices.py").touch()
    eventually(lambda: now(rolled, 1), 60)
    rolled.program.write("tasks", "app = = 1\n")
    worker.says("SyntaxError: invalid syntax")
    worker.says("app = = 1")
    assert now(rolled, 1), "the old code goes on"
    rolled.code(2)
    worker.says("tasks.py changed")
    eventually(lambda: now(rolled, 2), 60)
    worker.says("  runners")
    assert len([line for line in worker.lines if line.startswith("  runners")]) == 1, "it is one worker"
    # A job that runs is run again by code that is saved, even while that is imported.
    began = here / "never.began"
    job = rolled.enqueue("gate", str(here / "never"))
    eventually(began.exists, 60)
    began.unlink()
    rolled.code(3)
    eventually(began.exists, 60)
    assert (job.refresh().attempt, job.refresh().interruptions) == (2, 1)
    began.unlink()
    rolled.program.write("tasks", STUCK)
    eventually((here / "stuck").exists, 60)
    rolled.code(4)
    eventually(lambda: now(rolled, 4), 60)
    eventually(began.exists, 60)
    assert worker.stop(signal.SIGINT) == 0, "Ctrl-C waits for no job"
    assert job.state is State.READY
    assert not rolled.app.overview().workers
    job.cancel()


def test_a_worker_with_an_end_ends(rolled: Rolled) -> None:
    job = rolled.enqueue("nap", 0)
    worker = rolled.start("--reload", "--burst", ready=False)
    assert worker.ended() == 0
    assert job.state is State.SUCCEEDED


def test_what_no_change_of_the_code_would_help_ends_it(rolled: Rolled, new_server: Callable[..., Server]) -> None:
    assert "no such option" in rolled.program("worker", "tasks:app", "--reload", "--nonsense", code=2).fault.lower()
    assert "high:3" in rolled.program("worker", "tasks:app", "--reload", "--queues", "a:1,b", code=2).fault
    fault = rolled.program("worker", "tasks:app", "--reload", "--url", "http://x", code=2).fault
    assert "http" in fault
    evicting = new_server(config={"maxmemory-policy": "allkeys-lru"})
    worker = rolled.start("--reload", "--url", evicting.url, ready=False)
    assert worker.ended() == 3
    worker.says("maxmemory-policy")
