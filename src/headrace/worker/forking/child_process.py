"""A forked process of the worker: how it begins, ends, and how its end is told."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from headrace.worker.forking import signals, standard_streams
from headrace.worker.forking.process_ties import die_with
from headrace.worker.forking.standard_streams import STREAMS

log = logging.getLogger("headrace.worker")


def how(status: int) -> str:
    """How a process ended, in words."""
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def kill_group(pid: int) -> None:
    """End a child that was not reaped yet, and all that it started: its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_runner(pid: int, *, is_fork_server: bool) -> None:
    """End a runner with its group; of a fork server also its child, which a call of ``os.setsid`` puts out of that."""
    child = _held_child(pid) if is_fork_server else None
    kill_group(pid)
    if child is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(child, signal.SIGKILL)
        os.close(child)


def _held_child(pid: int) -> int | None:
    """A descriptor of the child that runs the job: the first one, since none lived when that was forked."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        first = children.read_text().split()[:1]
        if not first:
            return None
        child = os.pidfd_open(int(first[0]))
        # It cannot have become a stranger's between the two.
        if children.read_text().split()[:1] == first:
            return child
        os.close(child)
    except OSError:
        # A kernel that does not list children, or one of the two has ended.
        pass
    return None


def reap() -> Iterator[tuple[int, int, int]]:
    """The children that have ended: process id, status, and peak memory as the system counts it."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.wait4(-1, os.WNOHANG))[0]:
            yield ended[0], ended[1], ended[2].ru_maxrss


def fork_child(main: Callable[[], int], strangers: Sequence[socket.socket], *, tied: bool = True) -> int:
    """Fork a child, which has nothing of ours but the memory, and never our frames' ``finally`` or ``atexit``.

    Args:
        main: its work; the exit code.
        strangers: sockets of ours that it closes.
        tied: it ends with this process, and leads a group, which a kill takes along and no Ctrl-C in the terminal hits.

    Returns:
        its process id.

    Raises:
        OSError: the system has no room for it.
    """
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        _be_child(main, strangers, parent, tied=tied)
    if tied:
        # Both sides set the group: whoever comes first, a kill of the group can never hit ours.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
    return pid


def _be_child(main: Callable[[], int], strangers: Sequence[socket.socket], parent: int, *, tied: bool) -> NoReturn:
    code = 70
    try:
        signals.listen_no_more()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in (signal.SIGTERM, signal.SIGINT):
            # A Python handler, not SIG_IGN: what the user's code starts must not inherit deafness.
            signal.signal(number, signals.only_wake)
        for stranger in strangers:
            stranger.close()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        if tied:
            os.setpgid(0, 0)
            die_with(parent)
        code = main()
    except BaseException:
        log.critical("a process of the worker failed", exc_info=True)
    finally:
        standard_streams.flush()
        STREAMS.drain()
        os._exit(code)
