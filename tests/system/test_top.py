"""``headrace top``: redrawn in a terminal, plain elsewhere, and stopped where it is told to."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Headrace
from headrace.cli.top import lines_of, summary
from headrace.cli.top_frame import read_top
from headrace.settings import Settings
from tests.deadline import eventually
from tests.program import Program
from tests.scripts.stage import Stage
from tests.servers import Server

pytestmark = pytest.mark.system

LEASE = 600_000_000


@pytest.fixture
def stage(client: Any) -> Iterator[Stage]:
    made = Stage(client, guarded=False)
    made.now = time.time_ns() // 1000
    yield made
    made.close()


@pytest.fixture
def busy(url: str, stage: Stage) -> Iterator[Headrace]:
    """A store where jobs run, wait, wait in vain, and were counted."""
    with Headrace(url, settings=Settings(stats_flush_interval=3600)) as app:
        runners = json.dumps(
            [{"kind": "process", "job": "j" * 21, "task": "tasks.send", "since": stage.now - 90_000_000}]
        )
        stage.register("w1", LEASE, "mail", facts=["sizes", "process:4", "runner_facts", runners])
        stage.put(3, queue="mail")
        stage.take("w1", limit=1, queues=["mail"])
        stage.put(queue="mial")
        for n in range(4):
            app.stats.add("jobs/tasks.send", {"started": 1, "failed": n % 2})
            app.stats.observe("jobs/tasks.send", {"run": 0.25})
        app.stats.add("jobs", {"started": 4}, time.time() - 60)
        app.stats.flush()
        yield app


@pytest.mark.usefixtures("loaded")
def test_a_frame_is_one_round_trip(busy: Headrace) -> None:
    before = busy.client.store.round_trips
    frame = read_top(busy)
    assert busy.client.store.round_trips - before == 1
    assert [(one.name, one.ready, one.workers) for one in frame.queues] == [("mail", 2, 1), ("mial", 1, 0)]
    (task,) = frame.tasks
    assert (task.name, task.started, task.failed) == ("tasks.send", 4, 2)
    assert task.busy == pytest.approx(1, rel=0.02)
    assert (frame.workers[0].place, frame.workers[0].running, frame.workers[0].slots) == ("host:w1", 1, 4)
    assert frame.runs[0].seconds == pytest.approx(90, abs=60)
    assert sum(frame.ended) == 8


@pytest.mark.parametrize(("columns", "rows"), [(20, 5), (80, 24), (300, 100)])
def test_a_frame_fits_into_any_terminal(busy: Headrace, columns: int, rows: int) -> None:
    lines = lines_of(read_top(busy), columns, rows, "failed")
    assert max(map(len, lines)) <= max(72, columns)
    text = "\n".join(lines)
    assert "NONE" in text
    assert "tasks.send" in text


def test_names_do_not_reach_the_terminal_as_commands(busy: Headrace, stage: Stage) -> None:
    stage.client.sadd(stage.keys("queues"), "x\x1b[2J")
    stage.client.zadd(stage.keys("ready:x\x1b[2J"), {"0" * 21: 1})
    frame = read_top(busy)
    assert "\x1b" not in "\n".join([*lines_of(frame, 100, 50, "time"), summary(frame)])
    stage.client.delete(stage.keys("ready:x\x1b[2J"))
    stage.client.srem(stage.keys("queues"), "x\x1b[2J")


@pytest.fixture
def program(tmp_path: Path, url: str) -> Program:
    return Program(tmp_path, url)


def test_it_is_plain_where_there_is_no_terminal(busy: Headrace, program: Program) -> None:
    text = program("top", "--once").out
    assert "\x1b" not in text
    assert "mial" in text
    assert json.loads(program("top", "--once", "--json").out)["states"]["ready"] == 3


@pytest.mark.parametrize("json_", [False, True], ids=["lines", "documents"])
def test_into_a_pipe_it_prints_a_line_for_each_look(
    busy: Headrace, program: Program, stage: Stage, json_: bool
) -> None:
    asked = ("top", "--every", "0.2s", *(["--json"] if json_ else []))
    with program.start(*asked, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            first, second = process.stdout.readline(), process.stdout.readline()
            stage.put(7, queue="mail")
            later = ""
            for later in process.stdout:
                if later != second and "10" in later:
                    break
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
    if json_:
        assert [json.loads(line)["states"]["ready"] for line in (first, later)] == [3, 10]
    else:
        assert "ready 3" in first
        assert "ready 10" in later
        assert "\x1b" not in first


def test_into_a_pipe_an_outage_is_a_gap(new_server: Callable[..., Server], tmp_path: Path) -> None:
    server = new_server()
    program = Program(tmp_path, server.url)
    program.environment["HEADRACE_TIMEOUT"] = "2"
    with program.start("top", "--every", "0.2s") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert "ready 0" in process.stdout.readline()
            server.kill()
            assert "waiting for" in process.stderr.readline()
            # Longer than a call waits.
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(2.5)
            server.start()
            Headrace(server.url).by_name("tasks.send").enqueue()
            for line in process.stdout:
                if "ready 1" in line:
                    break
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


class Screen:
    """A terminal with ``headrace top`` in it."""

    def __init__(self, program: Program) -> None:
        self.end, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.before = termios.tcgetattr(inner)
        self.inner = inner
        self.process: subprocess.Popen[Any] = program.start(
            "top", "--every", "0.2s", stdin=inner, stdout=inner, stderr=inner
        )
        self.seen = ""

    def read(self) -> str:
        while select.select([self.end], [], [], 0)[0]:
            self.seen += os.read(self.end, 65536).decode(errors="replace")
        return self.seen

    def shows(self, text: str) -> None:
        eventually(lambda: text in self.read(), 60, what=f"{text!r} on the screen")

    def press(self, key: str) -> None:
        self.seen = ""
        os.write(self.end, key.encode())


@pytest.fixture
def screen(busy: Headrace, program: Program) -> Iterator[Callable[[], Screen]]:
    made: list[Screen] = []

    def make() -> Screen:
        made.append(Screen(program))
        return made[-1]

    yield make
    for one in made:
        one.process.kill()
        one.process.wait()
        os.close(one.end)
        os.close(one.inner)


def test_it_redraws_stops_goes_on_and_leaves_the_terminal_as_it_was(screen: Callable[[], Screen], stage: Stage) -> None:
    top = screen()
    top.shows("mial")
    top.shows("q quit")
    top.press("s")
    top.shows("tasks by starts")
    top.press("p")
    top.shows("top \u00b7 stopped")
    stage.put(7, queue="mail")
    top.press("s")
    top.shows("tasks by failed")
    assert "ready 3" in top.seen
    assert "ready 10" not in top.seen
    top.press("p")
    top.shows("ready 10")
    top.press("q")
    assert top.process.wait(60) == 0
    assert "\x1b[?1049l" in top.read()
    assert termios.tcgetattr(top.inner) == top.before


def test_a_person_filters_asks_why_and_pauses(screen: Callable[[], Screen], busy: Headrace) -> None:
    top = screen()
    top.shows("mial")
    top.press("/mia")
    top.shows("filter: mia_")
    top.press("\r")
    top.shows("only 'mia'")
    top.press("j\r")
    top.shows("no_worker_serves")
    assert "> mial" in top.seen
    assert "mail " not in top.seen.partition("only 'mia'")[2]
    top.press("P")
    top.shows("Pause mial? [y/N]")
    top.press("y")
    top.shows("mial is paused")
    assert busy.overview().queues[-1].paused
    top.press("Py")
    top.shows("mial is served again")
    assert [(act.verb, act.name, act.by) for act in busy.acts.page(order="asc")] == [
        ("pause", "mial", "cli"),
        ("resume", "mial", "cli"),
    ]
    top.press("q")
    assert top.process.wait(60) == 0


def test_why_a_queue_waits_tells_no_secret(screen: Callable[[], Screen], busy: Headrace) -> None:
    busy.queues["mial"].pause(note="token=canary-4f1d")
    top = screen()
    top.shows("mial")
    top.press("/mia")
    top.shows("filter: mia_")
    top.press("\r")
    top.shows("only 'mia'")
    top.press("j\r")
    top.shows("queue_paused")
    assert "token=***" in top.seen
    assert "canary-4f1d" not in top.seen
    top.press("q")
    assert top.process.wait(60) == 0
