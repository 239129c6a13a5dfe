"""``headrace profile``: real py-spy looks into real workers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Headrace
from headrace.cli import workers
from tests.commands import Commands
from tests.deadline import eventually
from tests.program import Worker
from tests.servers import connect

pytestmark = pytest.mark.system

TASKS = """
import time
from pathlib import Path
from typing import Any
from headrace import Headrace
from headrace.cli import workers

app = Headrace()

def chew(path: str) -> None:
    Path(path + ".began").touch()
    while not Path(path).exists():
        sum(n * n for n in range(20_000))
        time.sleep(0.003)

@app.task
def grind(path: str) -> None:
    chew(path)

@app.task
def other(path: str) -> None:
    chew(path)

@app.task(kind="thread")
def weave(path: str) -> None:
    chew(path)

@app.task
async def spin(path: str) -> None:
    chew(path)

@app.task
def rest(path: str) -> None:
    Path(path + ".began").touch()
    # Whoever wakes up now and then waits for a processor then, and is taken for busy.
    time.sleep(600)
"""


LESS = ["setpriv", "--reuid=65534", "--clear-groups", "--bounding-set=-all", "--"]


class Busy:
    """A worker whose runners do what the test says.

    Attributes:
        owner: its name.
    """

    def __init__(self, directory: Path, url: str) -> None:
        self.program = Commands(directory, url)
        self.program.write("tasks", TASKS)
        self.app = Headrace(url)
        self.directory = directory
        self.worker, self.owner = self.another("--processes", "2", "--threads", "2", "--shutdown-timeout", "0s")

    def another(self, *options: str) -> tuple[Worker, str]:
        """One more worker, once it serves, and its name; one that does not is ended, since nothing else would do that."""
        worker = Worker(self.program.start("worker", "tasks:app", *options))
        try:
            (owner,) = re.findall(r"worker (\S+) serves default", worker.says("serves default"))
        except BaseException:
            worker.close()
            raise
        return worker, str(owner)

    def run(self, *tasks: str) -> list[str]:
        """Start jobs; their ids, when their code runs."""
        ids = []
        for number, task in enumerate(tasks):
            path = self.directory / f"{number}-{task}"
            ids.append(self.app.by_name(f"tasks.{task}").enqueue(str(path)).id)
            eventually(path.with_name(path.name + ".began").exists, 60)
        return ids

    def facts(self, *words: str) -> Any:
        return self.program("profile", *words, "--json").json

    def fault(self, *words: str, code: int = 1) -> str:
        return self.program("profile", *words, code=code).fault

    def end(self) -> None:
        self.worker.close()
        self.app.close()


@pytest.fixture
def busy(tmp_path: Path, url: str) -> Iterator[Busy]:
    busy = Busy(tmp_path, url)
    yield busy
    busy.end()


def test_the_graph_of_a_worker_or_of_one_job_holds_what_runs(busy: Busy, tmp_path: Path) -> None:
    tasks = ("grind", "weave", "weave", "spin", "other")
    ids = busy.run(*tasks)
    facts = busy.facts(busy.owner.rpartition(":")[0], "--for", "2s")
    assert facts["samples"] > 20
    assert facts["of"] == busy.owner
    text = (tmp_path / "headrace-profile.svg").read_text()
    for name in ("grind", "weave", "spin", "chew"):
        assert f"{name} (tasks.py" in text
    # The second of the thread runner is found behind another one.
    for number in (0, 2, 3):
        facts = busy.facts(busy.owner, "--job", ids[number], "--for", "1s", "-o", "one.svg")
        assert facts["of"] == f"the job {ids[number]} (tasks.{tasks[number]})"
        (row,) = (one for one in busy.app.workers.get(busy.owner).runners if one.job == ids[number])
        assert facts["processes"] == [row.pid]
        text = (tmp_path / "one.svg").read_text()
        assert f"{tasks[number]} (tasks.py" in text
        assert "other (tasks.py" not in text
    (tmp_path / "0-grind").touch()
    eventually(lambda: busy.app.jobs.get(ids[0]).refresh().state == "succeeded", 60)
    assert f"the job {ids[0]} does not run: it is succeeded" in busy.fault("--job", ids[0])
    assert "0" * 21 in busy.fault("--job", "0" * 21)
    assert busy.worker.process.poll() is None


def test_a_worker_whose_dispatcher_hangs_can_be_looked_into(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_LEASE", "1")
    busy = Busy(tmp_path, url)
    try:
        busy.run("grind")
        dispatcher = int(busy.app.workers.get(busy.owner).metadata["dispatcher"])
        os.kill(dispatcher, signal.SIGSTOP)
        try:
            eventually(lambda: not busy.app.overview().live, 60)
            # It may be a container's probe, which asks whether the lease holds.
            busy.program("workers", "show", str(busy.worker.process.pid), code=1)
            for name in ((), (busy.owner,), (str(busy.worker.process.pid),)):
                assert busy.facts(*name, "--for", "1s", "--idle")["of"] == busy.owner
            # The supervisor has killed its runners, since its lease is over.
            assert "select (selectors.py" in (tmp_path / "headrace-profile.svg").read_text()
        finally:
            os.kill(dispatcher, signal.SIGCONT)
    finally:
        busy.end()


def test_one_runner_or_the_dispatcher_and_who_waits_where_asked(
    busy: Busy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy.run("grind", "rest")

    def numbered() -> list[str]:
        return re.findall(r"process \d+ \(pid (\d+)\)", busy.fault("--runner", "99"))

    # A heartbeat tells of them.
    eventually(lambda: len(numbered()) == 2, 60)
    told, numbers = busy.fault("--runner", "0"), numbered()
    assert f"process 0 (pid {numbers[0]}), thread 0 (pid " in told
    seen = []
    for number in numbers:
        words = ("--runner", number, "--for", "1s", "--format", "speedscope", "-o", f"{number}.json")
        ended = busy.program("profile", *words, code=None)
        seen += [ended.code == 0 and '"grind"' in (tmp_path / f"{number}.json").read_text()]
    assert sorted(seen) == [False, True], "one runner runs it, the other waits"
    (dispatcher,) = busy.facts("--dispatcher", "--idle", "--for", "1s", "-o", "d.svg")["processes"]
    assert "Dispatcher.run (headrace/worker/dispatcher/loop.py" in (tmp_path / "d.svg").read_text()
    picture = tmp_path / "headrace-profile.svg"
    busy.program("profile", "--idle", "--for", "1s")
    assert "rest (tasks.py" in picture.read_text()

    def nothing_computed() -> bool:
        """The process computes for a moment after it was forked."""
        picture.unlink(missing_ok=True)
        ended = busy.program("profile", "--dispatcher", "--for", "1s", code=None)
        return ended.code == 1 and "no thread computed; --idle counts waiting threads, too" in ended.err

    # A sample stops whom it looks at, who then waits for a processor to go back to sleep: on a busy machine that takes
    # longer than the next sample is away.
    with monkeypatch.context() as patch:
        patch.setattr(workers, "RATE", 2)
        eventually(nothing_computed, 60)
    assert not picture.exists()
    stopped = [busy.worker.process.pid, int(dispatcher)]
    try:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        assert "does not answer" in busy.fault("--runner", "0")
    finally:
        for pid in reversed(stopped):
            os.kill(pid, signal.SIGCONT)


def test_what_cannot_be_profiled_is_answered_with_what_can(
    busy: Busy, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert busy.owner in busy.fault("nobody")
    assert f"did you mean {busy.owner}?" in busy.fault(f"{busy.owner}x")
    assert "exclude each other" in busy.fault("--runner", "1", "--dispatcher", code=2)
    assert "--for takes" in busy.fault("--for", "0", code=2)
    assert "cannot be written" in busy.fault("-o", "nowhere/x.svg", code=2)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        assert "pip install 'headrace[profile]'" in busy.program("profile", code=1, PATH="/nowhere").fault
    _without_permission(busy, monkeypatch)
    second, owner = busy.another("--processes", "1")
    try:
        fault = busy.fault()
        assert busy.owner in fault
        assert owner in fault
    finally:
        second.close()
    # One on another machine is named.
    with connect(url) as client:
        client.hset(busy.app.client.keys(f"owner:{busy.owner}"), "place", "far-away:7")
    fault = busy.fault()
    assert "runs on far-away" in fault
    assert "profile it there" in fault


def _without_permission(busy: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses: py-spy runs as another user, without the capability to look into processes of others."""
    if shutil.which("setpriv") is None or subprocess.run([*LESS, "true"], capture_output=True, check=False).returncode:
        return  # this machine does not let us become another user
    busy.run("rest")
    start = subprocess.Popen
    with monkeypatch.context() as patch:
        patch.setattr(workers.subprocess, "Popen", lambda argv, **options: start([*LESS, *argv], **options))
        ended = busy.program("profile", "--for", "1s", code=1)
    assert "does not let this user look into process" in ended.err
    assert "SYS_PTRACE" in ended.err
    assert "Traceback" not in ended.err
