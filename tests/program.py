"""The ``headrace`` program as people start it: a process of its own, with an application in its directory."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.deadline import eventually
from tests.nursery import Forked, Purpose, headrace

TASKS = """
import logging, os, signal, sys, time
from headrace import Headrace, current_job

app = Headrace()

@app.task
def add(x: int, y: int = 1) -> int:
    job = current_job()
    job.log("first line")
    job.log("[red]second[/red] \\x1b[31mline")
    job.progress(0.5, "half [b]way")
    logging.getLogger("shop").warning("adding", extra={"customer": 7})
    return x + y

@app.task
def fail(text: str = "[red]boom[/red]") -> None:
    raise ValueError(text)

@app.task(max_crashes=1)
def crash() -> None:
    print("last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

@app.task
def nap(seconds: float) -> None:
    time.sleep(seconds)
"""


def serving() -> str:
    """What a worker logs when its store knows it, or the first of its shards, where its events are told."""
    return "serves default at shard 0" if os.environ.get("HEADRACE_SHARDS") else "serves default"


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Stdout as one JSON document."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Stdout as JSON, one document a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def fault(self) -> str:
        """The one line of an error, after those that said what the command waited for."""
        (line,) = (line for line in self.err.splitlines() if not line.startswith("waiting for "))
        assert line.startswith("headrace: "), line
        assert "Traceback" not in line
        return line.removeprefix("headrace: ")


class Program:
    """Starts ``headrace`` in a directory that holds ``tasks.py``.

    Attributes:
        directory: where it runs.
        environment: what it inherits; change it for all later commands.
        own: its workers are interpreters of their own, as those of people are, not forks of one that has imported
            Headrace: for tests of what is in memory, of streams and signals, and of images that follow each other.
        prelude: Python that its commands run before they begin.
    """

    def __init__(self, directory: Path, url: str | None, *, own: bool = False) -> None:
        self.directory = directory
        self.own = own
        self.prelude = ""
        self.environment = {**os.environ, "COLUMNS": "80", "HEADRACE_TIMEOUT": "15"}
        if url is not None:
            self.environment["HEADRACE_URL"] = url
        self.write("tasks", TASKS)

    def write(self, module: str, text: str) -> None:
        # As a whole: another worker may be importing it.
        new = self.directory / f"{module}.new"
        new.write_text(text)
        new.replace(self.directory / f"{module}.py")

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str] | Forked:
        """A command that runs beside the test, which must end it.

        A fork, as :meth:`__call__` makes one; a worker that is to be an interpreter of its own reads its options in the
        fork and then becomes one. (With ``--reload`` it does not, so that one begins as one; and so does a command with
        further options.)
        """
        plain = not options.keys() - {"stdout", "stderr"}
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        if plain and not _reloads(arguments):
            return self._forked(arguments, self.environment, options["stdout"], options["stderr"])
        return subprocess.Popen(
            [sys.executable, "-m", "headrace", *arguments],
            cwd=self.directory, env=self.environment, text=True, **options,
        )  # fmt: skip

    def _forks(self, arguments: tuple[str, ...]) -> bool:
        return arguments[:1] == ("worker",) and not _reloads(arguments) and not self.own

    def _forked(self, arguments: tuple[str, ...], environment: Mapping[str, str], out: Any, err: Any) -> Forked:
        purpose: Purpose = "worker" if self._forks(arguments) else "command"
        return headrace(
            environment, *arguments,
            purpose=purpose, prelude=self.prelude, stdout=out, stderr=err, directory=self.directory,
        )  # fmt: skip

    def __call__(self, *arguments: str, code: int | None = 0, **environment: str) -> Ended:
        """Run a command to its end, and check its exit code (None: any).

        A fork of a process in which everything is imported: a new interpreter for each of a hundred commands would
        take longer than all they do. What matters to an interpreter of its own is tested with ``fresh`` and ``start``.

        ``environment`` holds further variables for this command.
        """
        values = self.environment | environment
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = self._forked(arguments, values, out, err)
            try:
                ended = process.wait(60)
            except BaseException:
                process.kill()
                raise
            return checked(Ended(ended, *map(_text, (out, err))), code)

    def fresh(self, *arguments: str, code: int | None = 0, **environment: str) -> Ended:
        """The same in an interpreter of its own."""
        run = subprocess.run(
            [sys.executable, "-m", "headrace", *arguments],
            cwd=self.directory, env=self.environment | environment, text=True, timeout=60, check=False,
            stdin=subprocess.DEVNULL, capture_output=True,
        )  # fmt: skip
        return checked(Ended(run.returncode, run.stdout, run.stderr), code)

    def enqueue(self, *arguments: str) -> str:
        """Enqueue by command; the id."""
        return self("enqueue", *arguments).out.strip()

    def burst(self, *arguments: str) -> Ended:
        """A worker that runs what is ready, and leaves."""
        return self("worker", "tasks:app", "--burst", "--processes", "1", *arguments)


def on_terminal(program: Program, *arguments: str, answer: str = "", columns: int = 80) -> str:
    """What a command shows on a terminal of so many columns."""
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    program.environment |= {"COLUMNS": str(columns), "TERM": "xterm-256color"}
    process = program.start(*arguments, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    if answer:
        os.write(master, answer.encode())
    shown = b""
    try:
        while select.select([master], [], [], 30)[0]:
            try:
                piece = os.read(master, 65536)
            except OSError:  # how Linux says that nobody holds the other end
                break
            if not piece:
                break
            shown += piece
        process.wait(60)
    finally:
        process.kill()
        process.wait()
        os.close(master)
    return shown.decode()


def _reloads(arguments: tuple[str, ...]) -> bool:
    return any(word.startswith("--reload") for word in arguments)


def _text(stream: IO[str]) -> str:
    return os.pread(stream.fileno(), 1 << 20, 0).decode()


def checked(ended: Ended, code: int | None) -> Ended:
    assert code is None or ended.code == code, ended
    return ended


class Worker:
    """A worker that runs beside the test, and what it has said so far."""

    def __init__(self, process: subprocess.Popen[str] | Forked) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(iter(self.process.stderr.readline, ""))

    def says(self, text: str, timeout: float = 100) -> str:
        def found() -> str:
            return next((line for line in list(self.lines) if text in line), "")

        try:
            return eventually(found, timeout, what=f"{text!r} in its log")
        except AssertionError as error:
            error.add_note("".join(self.lines))
            raise

    def serves(self) -> str:
        return self.says(serving())

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        code = self.process.wait(100)
        self._reader.join(10)
        return code

    def close(self) -> None:
        try:
            if self.process.poll() is None:
                self.process.terminate()
                self.ended()
        finally:
            # One that a failed test left with a job that waits for it.
            self.process.kill()
            self.ended()
            for stream in (self.process.stdout, self.process.stderr):
                # What outlived it may hold its stderr: closing that would wait for the reader, and so for ever.
                if stream is not None and not self._reader.is_alive():
                    stream.close()
