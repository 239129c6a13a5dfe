"""Processes forked from one that has imported Headrace: what the suite runs starts in a tenth of the time.

A new interpreter takes 0.3 s of processor and more to import the worker, and the suite starts a thousand. A nursery
imports it once, stays single-threaded, and forks: the fault suite's workers (``tests/system/station.py``), ``headrace
worker`` (``tests/forked_worker.py``) and, from nurseries of their own, the other commands
(``tests/forked_command.py``) and programs of Django's projects (``tests/databases/forked_django.py``). Nothing of an
application is imported before the fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Literal, Self

ROOT = Path(__file__).resolve().parent.parent
Purpose = Literal["worker", "command", "django"]
IMPORTED: dict[Purpose, tuple[str, ...]] = {
    "worker": (
        "headrace.app", "headrace.cli.worker_order", "headrace.cli.worker_process", "headrace.schedules.schedule_handle",
        "headrace.worker.dispatcher.loop", "headrace.worker.runner.runner_process", "redis",
    ),
    "command": (
        "headrace.app", "headrace.admin.documents", "headrace.cli.session", "headrace.schedules.schedule_handle",
        "headrace.store.connection", "headrace.store.store", "redis", "rich.console", "rich.table",
    ),
    "django": (
        "django.core.management.commands.migrate", "django.db.backends.sqlite3.base", "django.contrib.contenttypes.apps",
        "headrace.app", "headrace.cli.session", "headrace.contrib.outbox", "redis", "sqlalchemy.orm",
    ),
}  # fmt: skip
AT_START = ("PYTHON", "OTEL_", "HEADRACE_TRACES")
"""How variables begin that an interpreter reads when it starts, or a module when it is imported."""
WORD = struct.Struct("!i")


class Forked:
    """A process that a nursery forked; the part of ``subprocess.Popen`` that tests of workers use.

    Attributes:
        stdout, stderr: the ends of pipes that its streams go to, where it has such.
    """

    def __init__(self, pid: int, end: int, stdout: IO[str] | None, stderr: IO[str] | None) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout = stdout
        self.stderr = stderr
        self._end = end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the pipes and wait, as ``Popen`` does."""
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()

    def poll(self) -> int | None:
        """Its exit code, if it has ended: minus the number of the signal that killed it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not, within so many seconds.
        """
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked worker", timeout or 0)
            told = os.read(self._end, WORD.size)
            os.close(self._end)
            assert told, "the nursery ended before its child"
            self.returncode = os.waitstatus_to_exitcode(WORD.unpack(told)[0])
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it says from now on, when it has ended. This closes its pipes, so a second call tells nothing."""
        said = ["", ""]

        def read(place: int, stream: IO[str]) -> None:
            with stream:
                said[place] = stream.read()

        streams = [
            (place, stream) for place, stream in enumerate((self.stdout, self.stderr)) if stream and not stream.closed
        ]
        readers = [threading.Thread(target=read, args=row, daemon=True) for row in streams]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return said[0], said[1]


class Nursery:
    """The process that forks, started at first use. Few in each process of the suite: see :func:`nursery_of`."""

    def __init__(self, environ: Mapping[str, str], purpose: Purpose) -> None:
        self._environ = environ
        self._purpose = purpose
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        module: str,
        environ: Mapping[str, str],
        *arguments: str,
        stdout: Any = subprocess.DEVNULL,
        stderr: Any = subprocess.DEVNULL,
        directory: Path = ROOT,
    ) -> Forked:
        """Run the ``main`` of a module in a new process with these arguments; its streams are as ``Popen`` takes them."""
        link = self._socket or self._open()
        end, tell = os.pipe()
        with tempfile.TemporaryFile() as order, os.fdopen(tell, "wb"), contextlib.ExitStack() as theirs:
            order.write(json.dumps([module, dict(environ), str(directory), arguments]).encode())
            order.flush()
            (read, out), (read_errors, error) = (_ends(stream, theirs) for stream in (stdout, stderr))
            socket.send_fds(link, [b"."], [order.fileno(), out, error, tell])
            pid = WORD.unpack(link.recv(WORD.size))[0]
        return Forked(pid, end, read, read_errors)

    def _open(self) -> socket.socket:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._socket.settimeout(60)
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, self._purpose, str(theirs.fileno())],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                env=self._environ,
            )  # fmt: skip
        return self._socket

    def close(self) -> None:
        """End it; what it forked lives on."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait(60)
            self._socket = self._process = None


def _ends(stream: Any, theirs: contextlib.ExitStack) -> tuple[IO[str] | None, int]:
    """What this process reads of a stream of another one, if anything, and where that one writes."""
    if stream == subprocess.PIPE:
        read, write = os.pipe()
        theirs.callback(os.close, write)
        return os.fdopen(read), write
    if stream == subprocess.DEVNULL:
        stream = theirs.enter_context(Path(os.devnull).open("wb"))  # noqa: SIM115 - the stack closes it
    return None, stream if isinstance(stream, int) else stream.fileno()


_OPENED: dict[tuple[Purpose, frozenset[tuple[str, str]]], Nursery] = {}


def nursery_of(environ: Mapping[str, str], purpose: Purpose = "worker") -> Nursery:
    """The one that begins with what an interpreter would read of this environment."""
    read = {name: value for name, value in environ.items() if name.startswith(AT_START)}
    key = purpose, frozenset(read.items())
    if key not in _OPENED:
        others = {name: value for name, value in os.environ.items() if not name.startswith(AT_START)}
        _OPENED[key] = Nursery(others | read, purpose)
    return _OPENED[key]


def headrace(
    environ: Mapping[str, str], *words: str, purpose: Purpose = "worker", prelude: str = "", **options: Any
) -> Forked:
    """Start ``headrace`` with these words as a fork.

    Args:
        purpose: ``worker`` for a worker that stays the fork, ``command`` for all others.
        prelude: Python that a command runs before it begins.
        options: as :meth:`Nursery.start` takes them.
    """
    first = (prelude,) if purpose == "command" else ()
    return nursery_of(environ, purpose).start(f"tests.forked_{purpose}", environ, *first, *words, **options)


def close() -> None:
    """End all of them."""
    for nursery in _OPENED.values():
        nursery.close()


def _reap(tells: dict[int, int]) -> None:
    """Tell of each child that ended."""
    while tells:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        tell = tells.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(tell, WORD.pack(status))
        os.close(tell)


def _become(order: int, *streams: int) -> int:
    """Be the new process: the module's exit code."""
    with open(order, "rb") as file:
        file.seek(0)
        module, environ, directory, arguments = json.load(file)
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
        os.close(stream)
    # As an interpreter makes them: those of the nursery take these for files in which one can seek.
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115 - until it ends
    sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    sys.argv[1:] = arguments
    return int(importlib.import_module(module).main())


def _learn(purpose: Purpose) -> None:
    """Do here what each of them would do: import, read a command's options, put scripts together."""
    for module in IMPORTED[purpose]:
        importlib.import_module(module)
    program = importlib.import_module("headrace.cli.commands")
    for words in (["worker", "--help"],) if purpose == "worker" else (["--help"], ["server", "path"]):
        program.run(words)
    for script in importlib.import_module("headrace.worker.dispatcher.store_session").SCRIPTS:
        importlib.import_module("headrace.protocol.script").load(script)
    # They search only their own objects for garbage, and share the memory of these.
    gc.freeze()


def main(purpose: Purpose, link: socket.socket) -> int:
    """Fork at each order until the suite closes its end; the exit code of the process that this is then."""
    _learn(purpose)
    wake, told = os.pipe()
    os.set_blocking(told, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    tells: dict[int, int] = {}
    while True:
        readable = select.select([link, wake], [], [])[0]
        if wake in readable:
            os.read(wake, 4096)
            _reap(tells)
        if link not in readable:
            continue
        asked, fds, *_ = socket.recv_fds(link, 1, 4)
        if not asked:
            return 0
        *given, tell = fds
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            link.close()
            for number in (wake, told, tell, *tells.values()):
                os.close(number)
            return _become(*given)
        for number in given:
            os.close(number)
        tells[pid] = tell
        link.send(WORD.pack(pid))


if __name__ == "__main__":
    purpose: Any = sys.argv.pop(1)
    sys.exit(main(purpose, socket.socket(fileno=int(sys.argv[1]))))
