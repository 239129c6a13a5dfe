"""An operator changes limits from the command line while a worker runs: what waits feels it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import Headrace, State
from headrace.errors import JobCancelled
from tests.commands import Commands
from tests.deadline import eventually
from tests.program import Worker

pytestmark = pytest.mark.system

CODE = """
import time
from pathlib import Path
from headrace import Concurrency, Headrace, Rate

app = Headrace()
account = app.limit("account", Concurrency(1), by="account")
app.limit("daily", Rate(1, per=86400))

@app.task(limits=[account])
def hold(account: str) -> None:
    while not Path("go").exists():
        time.sleep(0.005)

app.limit("newest", Concurrency(1), by="account", full="cancel_running")

@app.task(limits=["newest"])
def newest(account: str) -> None:
    while not Path("go").exists():
        time.sleep(0.005)

@app.task(limits=["daily"])
def rare() -> int:
    return 1
"""


@pytest.fixture
def headrace(tmp_path: Path, url: str) -> Iterator[Commands]:
    program = Commands(tmp_path, url)
    program.write("tasks", CODE)
    worker = Worker(program.start("worker", "tasks:app", "--processes", "4"))
    worker.says("serves default")
    yield program
    (tmp_path / "go").touch()
    worker.close()


def test_changed_numbers_start_jobs_that_wait_in_an_idle_worker(headrace: Commands, app: Headrace) -> None:
    jobs = [app.by_name("tasks.hold").enqueue("acme") for _ in range(4)]
    eventually(lambda: app.limits["account"].state("acme").held == 1)
    headrace("limits", "set", "account", "--value", "acme", "--concurrency", "3")
    eventually(lambda: app.limits["account"].state("acme").held == 3)
    assert sum(job.state == State.RUNNING for job in jobs) == 3
    document = headrace("limits", "show", "account", "--value", "acme", "--json").json
    assert (document["concurrency"], document["running"], document["waiting"]) == (3, 3, 1)
    first, second = app.by_name("tasks.rare").enqueue(), app.by_name("tasks.rare").enqueue()
    assert first.result(timeout=60) == 1
    assert "in " in headrace("limits", "list").out
    headrace("limits", "set", "daily", "--rate", "100/1s", "--for", "1h")
    assert second.result(timeout=60) == 1
    assert "was as code" not in headrace("limits", "unset", "daily").out
    assert "limit daily is declared by code that runs" in headrace("limits", "delete", "daily", code=1).fault
    assert "knows no limit nope: it knows account, daily, newest" in headrace("limits", "pause", "nope", code=1).fault
    assert "knows no limit acount: did you mean account?" in headrace("limits", "show", "acount", code=1).fault
    assert "nothing to set" in headrace("limits", "set", "account", code=2).fault
    assert "such as 500/1m" in headrace("limits", "set", "account", "--rate", "x", code=2).fault


def test_a_pause_holds_a_value_or_all_until_it_ends(headrace: Commands, app: Headrace) -> None:
    (headrace.directory / "go").touch()
    headrace("limits", "pause", "account", "--value", "acme", "--for", "10m")
    held, other = app.by_name("tasks.hold").enqueue("acme"), app.by_name("tasks.hold").enqueue("b c")
    other.result(timeout=60)
    assert held.state == State.READY
    headrace("limits", "pause", "account", "--value", "acme", "--for", "1s")
    held.result(timeout=60)
    assert app.limits["account"].values().rows[1:] == []
    headrace("limits", "pause", "account")
    jobs = [app.by_name("tasks.hold").enqueue(f"a{n}") for n in range(20)]
    assert app.by_name("tasks.rare").enqueue().result(timeout=60) == 1
    assert {job.state for job in jobs} == {State.READY}
    assert "paused" in headrace("limits", "show", "account").out
    assert "account goes on" in headrace("limits", "resume", "account").out
    acts = headrace("acts", "--json", "--order", "asc").lines
    assert [act["verb"] for act in acts] == ["pause", "pause", "pause", "resume"]
    for job in jobs:
        job.result(timeout=60)


def test_the_oldest_job_makes_room_for_a_new_one(headrace: Commands, app: Headrace) -> None:
    newest = app.by_name("tasks.newest")
    first = newest.enqueue("a")
    eventually(lambda: first.state == State.RUNNING)
    # In one call: the first one may end, and the second begin, before another call is made.
    unsent = [newest.job("a"), newest.job("a")]
    app.enqueue_many(unsent)
    second, third = (one.handle for one in unsent)
    for job in (first, second):
        with pytest.raises(JobCancelled):
            job.result(timeout=60)
    assert second.refresh().attempt == 0
    assert "lets other jobs start" in str(second.refresh().error)
    (headrace.directory / "go").touch()
    third.result(timeout=60)


BAD = """
from headrace import Concurrency, Headrace

app = Headrace()
one = app.limit("one", Concurrency(1), by="account")

@app.task(limits=LIMITS)
def call(url: str) -> None: ...
"""


def test_a_worker_whose_limits_cannot_be_does_not_start(tmp_path: Path, url: str) -> None:
    program = Commands(tmp_path, url)
    for limits, why in (
        ('["nope"]', "task bad.call has a limit 'nope', which is not declared: the limits of this application are one"),
        ("[one]", "limit one goes by 'account', and bad.call(url) has no such argument"),
    ):
        program.write("bad", BAD.replace("LIMITS", limits))
        assert why in program("worker", "bad:app", "--burst", code=4).err
