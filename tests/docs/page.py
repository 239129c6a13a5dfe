"""Run a page of the documentation as its reader would: in an empty directory, with real programs and a real server.

What a fenced block does is told by the words after its three backticks:

``python NAME.py``   is written to that file;
``python``           runs, in one interpreter for the whole page;
``console worker``   its command runs in the background to the end of the page, or until the page starts another;
``console``          its lines after ``$`` run, one after the other; the lines that follow must be what each printed;
``text output``      must be what the block before it printed.

In expected output ``…`` stands for anything. All other blocks are only shown. The programs of a page are forks of one that
has imported Headrace, unless the test wants interpreters of their own.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tests.deadline import eventually
from tests.docs import interpreter
from tests.nursery import Forked, Purpose, headrace, nursery_of

PATIENCE = 150.0
# Plugins that only we have installed: a reader's tests run in the order of their file.
OURS = ("randomly", "asyncio", "anyio", "celery", "valkey", "hypothesispytest", "cacheprovider")
# What a line is no single command with.
SHELL = set("|&;<>$`*?\n")
# As on a terminal: what is said to either stream stands in its order.
LINES = "import sys; sys.stdout.reconfigure(line_buffering=True)"


@dataclass(frozen=True)
class Block:
    """A fenced block: the words of its fence, its text, and the line of the page where it begins."""

    words: tuple[str, ...]
    text: str
    line: int


def blocks(page: str) -> Iterator[Block]:
    """Every fenced block of a page, indented ones included."""
    pattern = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
    for found in pattern.finditer(page):
        yield Block(tuple(found[2].split()), textwrap.dedent(found[3]), page.count("\n", 0, found.start()) + 1)


class Reader:
    """Does what a page says, block by block, and compares.

    Args:
        own: its programs are interpreters of their own, as those of readers are, not forks of one that has imported
            Headrace.
    """

    def __init__(self, page: Path, directory: Path, *, own: bool = False) -> None:
        self._page = page
        self._directory = directory
        self._own = own
        self._worker: subprocess.Popen[str] | Forked | None = None
        self._python: subprocess.Popen[str] | Forked | None = None
        self._link: socket.socket | None = None
        programs = str(Path(sys.executable).parent)
        self._environ = {
            **os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HEADRACE_EMBEDDED_IDLE_TIMEOUT": "0",
            "PYTEST_ADDOPTS": " ".join(f"-p no:{name}" for name in OURS), "COLUMNS": "100",
        }  # fmt: skip

    def read(self) -> int:
        """Do all of it; how many blocks were run or written."""
        done, said = 0, ""
        for block in blocks(self._page.read_text()):
            where = f"{self._page.name}:{block.line}"
            match block.words:
                case ("python", name):
                    (self._directory / name).parent.mkdir(exist_ok=True)
                    (self._directory / name).write_text(block.text)
                case ("python",):
                    said = self._run(block.text, where)
                case ("console", "worker"):
                    self._start(block.text)
                case ("console",):
                    self._converse(block.text, where)
                case ("text", "output"):
                    compare(block.text, said, where)
                case _:
                    continue
            done += 1
        return done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as ends:
            for process in (self._worker, self._python):
                if process is not None:
                    ends.callback(self._end, process)

    def _run(self, code: str, where: str) -> str:
        if self._python is None:
            self._link, theirs = socket.socketpair()
            with theirs:
                self._python = self._interpreter(theirs)
        assert self._link is not None
        self._link.sendall(json.dumps(code).encode() + b"\n")
        with self._link.makefile() as answers:
            answer = answers.readline()
        assert answer, f"{where}: the interpreter died"
        said: str = json.loads(answer)
        assert not said.endswith(interpreter.FAULT), f"{where}:\n{said}"
        return said

    def _interpreter(self, link: socket.socket) -> subprocess.Popen[str] | Forked:
        if self._own:
            command = [sys.executable, interpreter.__file__]
            return subprocess.Popen(command, cwd=self._directory, env=self._environ, text=True, stdout=link.fileno())
        return nursery_of(self._environ).start(
            interpreter.__name__, self._environ, stdout=link, stderr=sys.__stderr__, directory=self._directory
        )

    def _forked(self, purpose: Purpose, command: str, out: IO[str]) -> Forked:
        words = shlex.split(command)[1:]
        return headrace(
            self._environ, *words, purpose=purpose, prelude=LINES, stdout=out, stderr=out, directory=self._directory
        )

    def _start(self, text: str) -> None:
        """Start the page's worker, in place of the one before, and wait until it serves."""
        if self._worker is not None:
            self._end(self._worker)
        (command,) = (line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ "))
        log = self._directory / "worker.log"
        with log.open("w") as out:
            if self._forks(command):
                self._worker = self._forked("worker", command, out)
            else:
                self._worker = subprocess.Popen(
                    ["/bin/sh", "-c", f"exec {command}"], cwd=self._directory, env=self._environ, text=True, stderr=out,
                )  # fmt: skip
        worker = self._worker

        def serves() -> bool:
            assert worker.poll() is None, f"{command!r} ended:\n{log.read_text()}"
            return " serves " in log.read_text()

        eventually(serves, PATIENCE, what=command)

    def _forks(self, command: str) -> bool:
        return command.startswith("headrace ") and not self._own and not SHELL & set(command)

    def _converse(self, text: str, where: str) -> None:
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, wanted = part.partition("\n")
            with tempfile.TemporaryFile("w+") as out:
                if self._forks(command):
                    run = self._forked("command", command, out)
                    run.wait(PATIENCE)
                else:
                    subprocess.run(
                        command, shell=True, cwd=self._directory, env=self._environ | {"PYTHONUNBUFFERED": "1"},
                        timeout=PATIENCE, check=False, stdout=out, stderr=subprocess.STDOUT,
                    )  # fmt: skip
                out.seek(0)
                compare(wanted, out.read(), f"{where}: {command}")

    def _end(self, process: subprocess.Popen[str] | Forked) -> None:
        if process is self._python:
            assert self._link is not None
            self._link.close()
        else:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def compare(wanted: str, said: str, where: str) -> None:
    """Fail unless ``said`` is what the page promises; trailing blanks do not count."""
    promised, real = ("\n".join(line.rstrip() for line in text.strip().splitlines()) for text in (wanted, said))
    pattern = ".*?".join(re.escape(piece) for piece in promised.split("…"))
    assert re.fullmatch(pattern, real, re.DOTALL), f"{where}: promised\n\n{promised}\n\nbut it printed\n\n{real}"
