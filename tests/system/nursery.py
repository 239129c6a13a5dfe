"""Processes forked from one that has imported Headrace: a worker of the fault suite starts in a tenth of the time.

A new interpreter takes 0.3 s of processor to import the worker, and the suite starts hundreds. The nursery imports it
once, stays single-threaded, and forks. Nothing of an application is imported before the fork. Tests of the command line
(``tests/program.py``) start interpreters of their own.
"""

from __future__ import annotations

import contextlib
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
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
IMPORTED = ("headrace.worker.supervisor.supervisor_process", "headrace.worker.dispatcher.loop", "redis")
WORD = struct.Struct("!i")


class Forked:
    """A process that the nursery forked; the part of ``subprocess.Popen`` that tests of workers use."""

    def __init__(self, pid: int, end: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._end = end

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


class Nursery:
    """The process that forks, started at first use. One in each process of the suite."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, module: str, environ: dict[str, str], error: int) -> Forked:
        """Run the ``main`` of a module in a new process, in the checkout, with this environment and stderr."""
        link = self._socket or self._open()
        end, tell = os.pipe()
        with tempfile.TemporaryFile() as order, os.fdopen(tell, "wb"):
            order.write(json.dumps([module, environ]).encode())
            order.flush()
            socket.send_fds(link, [b"."], [order.fileno(), error, tell])
        return Forked(WORD.unpack(link.recv(WORD.size))[0], end)

    def _open(self) -> socket.socket:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._socket.settimeout(60)
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
            )  # fmt: skip
        return self._socket

    def close(self) -> None:
        """End it; what it forked lives on."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait(60)
            self._socket = self._process = None


NURSERY = Nursery()


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


def _become(order: int, error: int) -> int:
    """Be the new process: the module's exit code."""
    with open(order, "rb") as file:
        file.seek(0)
        module, environ = json.load(file)
    os.dup2(error, 2)
    os.close(error)
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    return int(importlib.import_module(module).main())


def main(link: socket.socket) -> int:
    """Fork at each order until the suite closes its end; the exit code of the process that this is then."""
    for module in IMPORTED:
        importlib.import_module(module)
    wake, told = os.pipe()
    os.set_blocking(told, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    tells: dict[int, int] = {}
    while True:
        readable = select.select([link, wake], [], [])[0]
        if wake in readable:
            os.read(wake, 4096)
            _reap(tells)
        if link not in readable:
            continue
        asked, fds, *_ = socket.recv_fds(link, 1, 3)
        if not asked:
            return 0
        order, error, tell = fds
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            link.close()
            for number in (wake, told, tell, *tells.values()):
                os.close(number)
            return _become(order, error)
        os.close(order)
        os.close(error)
        tells[pid] = tell
        link.send(WORD.pack(pid))


if __name__ == "__main__":
    sys.exit(main(socket.socket(fileno=int(sys.argv[1]))))
