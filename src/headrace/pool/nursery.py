"""Processes of pools: how one is started, killed and reaped. Owns what multiprocessing keeps of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.process
import os
import signal
import socket
import threading
from importlib import import_module
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerProcess

from headrace.clock import monotonic
from headrace.pool import shutdown
from headrace.pool.child import main

# The exit handler of multiprocessing, which this import registers, waits for our processes, and these wait for us.
import_module("multiprocessing.util")
shutdown.before_others()

# The bookkeeping of multiprocessing is not made for several threads that start and reap at once: one of them may be
# told a wrong exit code.
_nursery = threading.Lock()


def _in_fork() -> None:
    """A fork starts processes from a server of its own, and has none yet; no thread that held a lock is here."""
    global _nursery
    _nursery = threading.Lock()
    server = vars(forkserver._forkserver)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if server["_forkserver_alive_fd"] is not None:
        os.close(server["_forkserver_alive_fd"])
    server.update(_forkserver_alive_fd=None, _forkserver_address=None, _forkserver_pid=None, _lock=threading.Lock())
    tracker = vars(resource_tracker._resource_tracker)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    tracker["_lock"] = threading.RLock()
    # A look at one of its parent's would take away what the parent is to be told of its end.
    vars(multiprocessing.process)["_children"].clear()


os.register_at_fork(after_in_child=_in_fork)

# Seconds that a process may take to end after it was told to, or closed its socket.
_PATIENCE = 5.0


def born(name: str, sock: socket.socket, leash: socket.socket, start: bytes) -> ForkServerProcess:
    """A process that has these ends, which are closed here."""
    with sock, leash, _nursery:
        process = multiprocessing.get_context("forkserver").Process(target=main, args=(sock, leash, start), name=name)
        process.start()
    return process


def reaped(process: ForkServerProcess, pid: int) -> int:
    """The exit code of a process that was told to end; after a while it is killed."""
    end = monotonic() + _PATIENCE
    while True:
        with _nursery:
            process.join(0)
            code = process.exitcode
        if code is not None:
            return code
        if monotonic() > end:
            kill_group(pid)
            end += _PATIENCE
        threading.Event().wait(0.002)


def ended_by(code: int) -> str:
    """What an exit code says, for people."""
    return f"signal {-code}, {_signal_name(-code)}" if code < 0 else f"exit code {code}"


def kill_group(pid: int, *, alone: bool = True) -> None:
    """Kill a process and what it started; before it has made its group, just itself."""
    if pid <= 0 or pid == os.getpgid(0):
        return
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        if alone:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
