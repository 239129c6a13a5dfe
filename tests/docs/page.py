"""Run a page of the documentation as its reader would: in an empty directory, with real programs and a real server.

What a fenced block does is told by the words after its three backticks:

``python NAME.py``   is written to that file;
``python``           runs, in one interpreter for the whole page;
``console worker``   its command runs in the background to the end of the page, or until the page starts another;
``console``          its lines after ``$`` run, one after the other; the lines that follow must be what each printed;
``text output``      must be what the block before it printed.

In expected output ``…`` stands for anything. All other blocks are only shown.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.deadline import eventually

PATIENCE = 60
LEAN = Path(__file__).resolve().parent.parent / "lean"

# Reads one JSON string a line, runs it, and answers with what it printed.
INTERPRETER = """
import contextlib, io, json, sys, traceback
names, answers = {"__name__": "page"}, sys.stdout
for line in sys.stdin:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            exec(compile(json.loads(line), "page", "exec"), names)
        except BaseException:
            traceback.print_exc(file=said)
            said.write("the block raised")
    print(json.dumps(said.getvalue()), file=answers, flush=True)
"""


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
    """Does what a page says, block by block, and compares."""

    def __init__(self, page: Path, directory: Path) -> None:
        self._page = page
        self._directory = directory
        self._worker: subprocess.Popen[str] | None = None
        self._python: subprocess.Popen[str] | None = None
        programs = str(Path(sys.executable).parent)
        self._environ = {
            **os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HEADRACE_EMBEDDED_IDLE_TIMEOUT": "0",
            # Plugins that only we have installed: a reader's tests run in the order of their file.
            "PYTEST_ADDOPTS": "-p no:randomly -p no:asyncio -p no:valkey -p no:cacheprovider",
            "COLUMNS": "100", "PYTHONPATH": f"{LEAN}{os.pathsep}{directory}", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip

    def read(self) -> int:
        """Do all of it; how many blocks were run or written."""
        done, said = 0, ""
        for block in blocks(self._page.read_text()):
            where = f"{self._page.name}:{block.line}"
            match block.words:
                case ("python", name):
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
            self._python = subprocess.Popen(
                [sys.executable, "-c", INTERPRETER],
                cwd=self._directory, env=self._environ, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps(code) + "\n")
        self._python.stdin.flush()
        answer = self._python.stdout.readline()
        assert answer, f"{where}: the interpreter died"
        said: str = json.loads(answer)
        assert not said.endswith("the block raised"), f"{where}:\n{said}"
        return said

    def _start(self, text: str) -> None:
        """Start the page's worker, in place of the one before, and wait until it serves."""
        if self._worker is not None:
            self._end(self._worker)
        (command,) = (line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ "))
        log = self._directory / "worker.log"
        with log.open("w") as out:
            self._worker = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"], cwd=self._directory, env=self._environ, text=True, stderr=out,
            )  # fmt: skip
        worker = self._worker

        def serves() -> bool:
            assert worker.poll() is None, f"{command!r} ended:\n{log.read_text()}"
            return " serves " in log.read_text()

        eventually(serves, PATIENCE, what=command)

    def _converse(self, text: str, where: str) -> None:
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, wanted = part.partition("\n")
            run = subprocess.run(
                command, shell=True, cwd=self._directory, env=self._environ, timeout=PATIENCE, check=False, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            compare(wanted, run.stdout, f"{where}: {command}")

    def _end(self, process: subprocess.Popen[str]) -> None:
        if process.stdin is not None:
            process.stdin.close()
        else:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def compare(wanted: str, said: str, where: str) -> None:
    """Fail unless ``said`` is what the page promises; trailing blanks do not count."""
    promised, real = ("\n".join(line.rstrip() for line in text.strip().splitlines()) for text in (wanted, said))
    pattern = ".*?".join(re.escape(piece) for piece in promised.split("…"))
    assert re.fullmatch(pattern, real, re.DOTALL), f"{where}: promised\n\n{promised}\n\nbut it printed\n\n{real}"
