"""The demo as its viewer runs it, whole and interrupted: what it shows is true, and nothing of it stays."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys
import sysconfig
import token
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.commands import Commands
from tests.deadline import eventually
from tests.processes import below, dispatcher_of, lives

pytestmark = pytest.mark.system

Attempt = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Where the demo may leave something: its own TMPDIR, short enough for a socket."""
    place = tmp_path / "t"
    place.mkdir()
    return place


@pytest.fixture
def start(temporary: Path, tmp_path: Path) -> Iterator[Attempt]:
    """Start ``headrace demo``; after the test nothing of it may be left, neither a process nor a file."""
    started: list[subprocess.Popen[str]] = []

    def run(*options: str, **given: object) -> subprocess.Popen[str]:
        environ = {**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"}
        # Somebody's real queue: the demo must not touch it.
        environ |= {"HEADRACE_URL": "redis://nobody.invalid:1", "HEADRACE_NAMESPACE": "theirs"}
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | given
        command = [sys.executable, "-m", "headrace", "demo", *options]
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environ, **settings))  # type: ignore[call-overload]
        return started[-1]

    yield run
    for process in started:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    eventually(lambda: not _of_the_demo(temporary), 60, what="the demo's processes end")
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / ".headrace").exists()


def _of_the_demo(temporary: Path) -> list[psutil.Process]:
    """Every process that works for a demo with this TMPDIR, however detached."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("TMPDIR") == str(temporary):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return [process for process in found if lives(process)]


def _worker(demo: subprocess.Popen[str]) -> psutil.Process | None:
    """The demo's worker, once there are runners."""
    for child in below(demo.pid, recursive=False):
        with contextlib.suppress(psutil.Error):  # the private server's starter ends at any moment
            if "headrace.demo:app" in child.cmdline() and len(child.children()) >= 3:
                return child
    return None


def started(demo: subprocess.Popen[str]) -> psutil.Process:
    """Its worker, when it runs; three interpreters start until then."""

    def running() -> psutil.Process | None:
        assert demo.poll() is None, demo.communicate()
        return _worker(demo)

    return eventually(running, 100, what="the worker runs", every=0.05)


def _counted(limit: int) -> tuple[int, int]:
    """Lines and functions of so many files that are spread over the library, as their tokens say."""
    from headrace.demo import sources

    lines, functions, paths = 0, 0, sources()
    for number in range(limit):
        text = (Path(sysconfig.get_path("stdlib")) / paths[number * len(paths) // limit]).read_bytes()
        lines += len(text.splitlines())
        names = (one.string for one in tokenize.tokenize(io.BytesIO(text).readline) if one.type == token.NAME)
        functions += sum(name == "def" for name in names)
    return lines, functions


def test_it_measures_files_through_a_crash_and_a_retry(start: Attempt, tmp_path: Path) -> None:
    demo = start("--limit", "60", "--json")
    said, complained = demo.communicate(timeout=150)
    assert (demo.returncode, complained) == (0, "")
    assert "\x1b" not in said

    facts = json.loads(said)
    cost, total = facts["cost"], facts["total"]
    assert (cost["lost"], cost["crashes"], cost["retries"]) == (0, 1, 1)
    assert total["files"] == sum(package["files"] for package in facts["packages"]) == 60
    # A job for each file and each package, five that the definition has.
    assert cost["jobs"] == 60 + len(facts["packages"]) + 5
    assert (total["lines"], total["functions"]) == _counted(60)
    killed, retried = facts["survived"]
    picture = (tmp_path / facts["picture"]).read_text()
    assert facts["picture"] == "headrace-demo.svg"
    # Each fan-out is one box, whether or not it is wide: here are 60 files.
    assert "measure each file \N{MULTIPLICATION SIGN} 60" in picture
    assert len(picture) < 20_000
    # The README says that the picture shows the kill.
    assert re.search(r">[\d.]+ m?s, 1 crash, 1 retry<", picture)
    assert "killed" in killed
    assert "raised" in retried
    # Measured, not made up.
    assert cost["seconds"] > 0
    assert 0 < cost["round_trips_per_job"] < 60


def test_a_terminal_of_80_columns_gets_a_bar_and_whole_lines(start: Attempt, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    os.environ["COLUMNS"] = "80"
    try:
        demo = start("--limit", "24", "--processes", "1", "--picture", "run.mmd", stdout=slave, stderr=slave)
    finally:
        del os.environ["COLUMNS"]
        os.close(slave)
    shown = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # how Linux says that nobody holds the other end
            break
        if not piece:
            break
        shown += piece
    os.close(master)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert demo.wait(150) == 0
    assert re.search(r"\d+/\? jobs", text)
    assert "with 1 process runner\r\n" in text
    assert "the scan found 24 source files" in text
    assert "measure each file \N{MULTIPLICATION SIGN} n " in text
    assert re.search(r"a runner was killed while measuring \S+: its job\s+ran again and succeeded, start 2", text)
    assert re.search(r"measuring \S+ raised: its job was\s+retried and succeeded, start 2", text)
    assert "A picture of the run: run.mmd" in text
    assert "flowchart" in (tmp_path / "run.mmd").read_text()
    assert not (tmp_path / "headrace-demo.svg").exists()
    tables = text[text.rindex("package  ") :].splitlines()
    assert max(map(len, tables)) <= 80


def test_a_demo_that_lost_its_worker_says_so_and_a_dispatcher_left_behind_does_not_bring_the_server_back(
    start: Attempt,
) -> None:
    demo = start()
    assert demo.stdout
    assert any("the scan found" in line for line in demo.stdout), "files are being measured"
    worker = started(demo)
    dispatcher = eventually(lambda: dispatcher_of(worker.pid), what="its dispatcher")
    dispatcher.suspend()
    worker.kill()
    assert demo.wait(60) == 1
    assert demo.stderr
    assert "the demo's worker ended with exit code -9" in demo.stderr.read()
    with contextlib.suppress(psutil.NoSuchProcess):
        dispatcher.resume()
    # Its fixture looks afterwards whether a file came back.
    eventually(lambda: not lives(dispatcher), 60)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--picture", "run.jpg"], "end it in"),
        (["--picture", "no/such/run.svg"], "cannot be written"),
        (["--limit", "0"], "--limit"),
        (["--processes", "0"], "--processes"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    temporary: Path, tmp_path: Path, words: list[str], reason: str
) -> None:
    headrace = Commands(tmp_path, None)
    headrace.environment["TMPDIR"] = str(temporary)
    ended = headrace("demo", *words, code=2)
    assert ended.out == ""
    assert reason in ended.err
    assert list(temporary.iterdir()) == []
    assert _of_the_demo(temporary) == []
