"""``headrace profile``: real py-spy looks into real workers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import Headrace
from tests.deadline import eventually
from tests.program import Program, Worker
from tests.servers import connect

pytestmark = pytest.mark.system

TASKS = """
import time
from pathlib import Path
from headrace import Headrace

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


def _owner(worker: Worker) -> str:
    """The name of a worker, once it serves; one that does not is ended, since nobody else would do that."""
    try:
        (owner,) = re.findall(r"worker (\S+) serves default", worker.says("serves default"))
    except BaseException:
        worker.close()
        raise
    return str(owner)


class Busy:
    """A worker whose runners do what the test says.

    Attributes:
        owner: its name.
    """

    def __init__(self, directory: Path, url: str) -> None:
        self.program = Program(directory, url)
        self.program.write("tasks", TASKS)
        self.app = Headrace(url)
        self.go = directory / "go"
        self.worker = Worker(
            self.program.start("worker", "tasks:app", "--processes", "2", "--threads", "2", "--shutdown-timeout", "0s")
        )
        self.owner = _owner(self.worker)

    def run(self, *tasks: str) -> list[str]:
        """Start jobs; their ids, when their code runs."""
        ids = []
        for number, task in enumerate(tasks):
            path = self.go.with_name(f"{number}-{task}")
            ids.append(self.app.by_name(f"tasks.{task}").enqueue(str(path)).id)
            eventually(path.with_name(path.name + ".began").exists, 60)
        return ids

    def finish(self, number: int, task: str) -> None:
        self.go.with_name(f"{number}-{task}").touch()

    def end(self) -> None:
        self.worker.close()
        self.app.close()


@pytest.fixture
def busy(tmp_path: Path, url: str) -> Iterator[Busy]:
    busy = Busy(tmp_path, url)
    yield busy
    busy.end()


def test_the_graph_of_a_worker_holds_what_its_runners_run(busy: Busy, tmp_path: Path) -> None:
    *_, id = busy.run("grind", "weave", "weave")
    facts = busy.program("profile", busy.owner.rpartition(":")[0], "--for", "3s", "--json").json
    assert facts["samples"] > 20
    assert facts["of"] == busy.owner
    text = (tmp_path / "headrace-profile.svg").read_text()
    for name in ("grind (tasks.py", "weave (tasks.py", "chew (tasks.py"):
        assert name in text
    # A job is found behind others of its runner.
    facts = busy.program("profile", "--job", id, "--for", "1s", "--json").json
    assert facts["of"] == f"the job {id} (tasks.weave)"
    (row,) = (one for one in busy.app.workers.get(busy.owner).runners if one.kind == "thread")
    assert (row.job, facts["processes"]) == (id, [row.pid])
    assert busy.worker.process.poll() is None


def test_one_job_by_its_id(busy: Busy, tmp_path: Path) -> None:
    tasks = ("grind", "weave", "spin")
    ids = busy.run(*tasks, "other")
    for number, task in enumerate(tasks):
        busy.program("profile", busy.owner, "--job", ids[number], "--for", "2s", "-o", f"{task}.svg")
        busy.finish(number, task)
        text = (tmp_path / f"{task}.svg").read_text()
        assert f"{task} (tasks.py" in text
        assert "other (tasks.py" not in text
    eventually(lambda: busy.app.jobs.get(ids[0]).refresh().state == "succeeded", 60)
    assert f"the job {ids[0]} does not run: it is succeeded" in _fault(busy, "profile", "--job", ids[0], code=1)
    assert "0" * 21 in _fault(busy, "profile", "--job", "0" * 21, code=1)


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
                facts = busy.program("profile", *name, "--for", "1s", "--idle", "--json").json
                assert facts["of"] == busy.owner
            # The supervisor has killed its runners, since its lease is over.
            assert "select (selectors.py" in (tmp_path / "headrace-profile.svg").read_text()
        finally:
            os.kill(dispatcher, signal.SIGCONT)
    finally:
        busy.end()


def test_one_runner_and_the_dispatcher_for_speedscope(busy: Busy, tmp_path: Path) -> None:
    busy.run("grind")

    def runners() -> list[str]:
        told = busy.program("profile", busy.owner, "--runner", "99", code=1).fault
        return re.findall(r"process \d+ \(pid (\d+)\)", told)

    # The job needs one of them only: the other may be forked later.
    eventually(lambda: len(runners()) == 2, 60)
    numbers = runners()
    seen = []
    for number in numbers:
        ended = busy.program(
            "profile", "--runner", number, "--for", "2s", "--format", "speedscope", "-o", f"{number}.json", code=None
        )
        seen += [ended.code == 0 and '"grind"' in (tmp_path / f"{number}.json").read_text()]
    assert sorted(seen) == [False, True], "one runner runs it, the other waits"
    told = busy.program("profile", "--runner", "0", code=1).fault
    assert f"process 0 (pid {numbers[0]}), thread 0 (pid " in told
    facts = busy.program("profile", "--dispatcher", "--idle", "--for", "2s", "-o", "d.svg", "--json").json
    assert len(facts["processes"]) == 1
    assert "Dispatcher.run (headrace/worker/dispatcher/loop.py" in (tmp_path / "d.svg").read_text()


def test_who_waits_is_counted_when_asked(busy: Busy, tmp_path: Path) -> None:
    busy.run("rest")
    picture = tmp_path / "headrace-profile.svg"

    def nothing_computed() -> bool:
        """The process computes for a moment after it was forked."""
        picture.unlink(missing_ok=True)
        ended = busy.program("profile", "--dispatcher", "--for", "1s", code=None)
        return ended.code == 1 and "no thread computed; --idle counts waiting threads, too" in ended.err

    # A sample stops whom it looks at, who then waits for a processor to go back to sleep: on a busy machine that takes
    # longer than the next sample is away.
    busy.program.prelude = "from headrace.cli import workers; workers.RATE = 2"
    eventually(nothing_computed, 60)
    busy.program.prelude = ""
    assert not picture.exists()
    busy.program("profile", "--idle", "--for", "2s")
    assert "rest (tasks.py" in (tmp_path / "headrace-profile.svg").read_text()


def test_what_cannot_be_profiled_is_answered_with_what_can(busy: Busy, url: str) -> None:
    assert busy.owner in _fault(busy, "profile", "nobody", code=1)
    assert f"did you mean {busy.owner}?" in _fault(busy, "profile", f"{busy.owner}x", code=1)
    assert "exclude each other" in _fault(busy, "profile", "--runner", "1", "--dispatcher", code=2)
    assert "--for takes" in _fault(busy, "profile", "--for", "0", code=2)
    assert "cannot be written" in _fault(busy, "profile", "-o", "nowhere/x.svg", code=2)
    busy.program.prelude = "import sys; sys.executable = '/nowhere/python'"
    assert "pip install 'headrace[profile]'" in busy.program("profile", code=1, PATH="/nowhere").fault
    busy.program.prelude = ""
    _without_permission(busy)
    with Second(busy) as second:
        fault = _fault(busy, "profile", code=1)
        assert busy.owner in fault
        assert second.owner in fault
    # One on another machine is named.
    with connect(url) as client:
        client.hset(busy.app.client.keys(f"owner:{busy.owner}"), "place", "far-away:7")
    fault = _fault(busy, "profile", code=1)
    assert "runs on far-away" in fault
    assert "profile it there" in fault


class Second:
    """Another worker beside the first."""

    def __init__(self, busy: Busy) -> None:
        self.worker = Worker(busy.program.start("worker", "tasks:app", "--processes", "1"))
        self.owner = _owner(self.worker)

    def __enter__(self) -> Second:
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.close()


def _fault(busy: Busy, *arguments: str, code: int) -> str:
    return busy.program(*arguments, code=code).fault


def test_a_worker_that_does_not_answer_is_said_to(busy: Busy) -> None:
    busy.run("rest")
    os.kill(busy.worker.process.pid, signal.SIGSTOP)
    dispatcher = int(busy.program("profile", "--dispatcher", "--idle", "--for", "2s", "--json").json["processes"][0])
    os.kill(dispatcher, signal.SIGSTOP)
    try:
        assert "does not answer" in _fault(busy, "profile", "--runner", "0", code=1)
    finally:
        os.kill(dispatcher, signal.SIGCONT)
        os.kill(busy.worker.process.pid, signal.SIGCONT)


LESSER = """
from headrace.cli import workers

started, less = workers.subprocess.Popen, ["setpriv", "--reuid=65534", "--clear-groups", "--bounding-set=-all", "--"]
workers.subprocess.Popen = lambda argv, **options: started([*less, *argv], **options)
"""


def _without_permission(busy: Busy) -> None:
    """The kernel refuses: py-spy runs as another user, without the capability to look into processes of others."""
    bare = ["setpriv", "--reuid=65534", "--clear-groups", "--bounding-set=-all", "--", "true"]
    if shutil.which("setpriv") is None or subprocess.run(bare, capture_output=True, check=False).returncode:
        return  # this machine does not let us become another user
    busy.run("rest")
    busy.program.prelude = LESSER
    ended = busy.program("profile", "--for", "1s", code=1)
    assert "does not let this user look into process" in ended.err
    assert "SYS_PTRACE" in ended.err
    assert "Traceback" not in ended.err
    busy.program.prelude = ""
