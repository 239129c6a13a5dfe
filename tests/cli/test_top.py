"""``headrace top``: redrawn in a terminal, plain elsewhere."""

from __future__ import annotations

import fcntl
import io
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
from rich.console import Console

from headrace import Headrace
from headrace.cli.queues import summary, table, top_document
from headrace.protocol.overviews import Overview
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
    """A store where jobs run, wait, and wait in vain."""
    with Headrace(url, stats_flush_interval=3600) as app:
        runners = json.dumps(
            [{"kind": "process", "job": "j" * 21, "task": "tasks.send", "since": stage.now - 90_000_000}]
        )
        stage.register("w1", LEASE, "mail", facts=["sizes", "process:4", "runner_facts", runners])
        stage.put(3, queue="mail")
        stage.take("w1", limit=1, queues=["mail"])
        stage.put(queue="mial")
        yield app


@pytest.mark.usefixtures("loaded")
def test_a_look_is_one_round_trip(busy: Headrace) -> None:
    busy.overview()
    before = busy.client.store.round_trips
    seen = busy.overview()
    assert busy.client.store.round_trips - before == 1
    found = top_document(seen)
    assert [(one["name"], one["ready"], one["workers"]) for one in found["queues"]] == [("mail", 2, 1), ("mial", 1, 0)]
    assert (found["workers"], found["slots"]) == (1, 4)


def drawn(seen: Overview, columns: int) -> str:
    console = Console(width=columns, file=io.StringIO())
    console.print(table(seen))
    return str(console.file.getvalue())


@pytest.mark.parametrize("columns", [50, 80, 300])
def test_a_table_fits_into_any_terminal(busy: Headrace, columns: int) -> None:
    text = drawn(busy.overview(), columns)
    assert max(map(len, text.splitlines())) <= columns
    assert "NONE" in text
    assert "mial" in text


def test_names_do_not_reach_the_terminal_as_commands(busy: Headrace, stage: Stage) -> None:
    stage.client.sadd(stage.keys("queues"), "x\x1b[2J")
    stage.client.zadd(stage.keys("ready:x\x1b[2J"), {"0" * 21: 1})
    seen = busy.overview()
    assert "\x1b" not in drawn(seen, 100) + summary(seen)
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


def test_it_redraws_and_leaves_the_terminal_as_it_was(screen: Callable[[], Screen], stage: Stage) -> None:
    top = screen()
    top.shows("mial")
    top.shows("ready 3")
    stage.put(7, queue="mail")
    top.shows("ready 10")
    top.process.send_signal(signal.SIGINT)
    assert top.process.wait(60) == 0
    top.shows("\x1b[?1049l")
    assert termios.tcgetattr(top.inner) == top.before
