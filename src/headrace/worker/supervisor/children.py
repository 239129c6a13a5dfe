"""What every child of the supervisor has in common: how it begins, and how its end is told."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from headrace.worker.channel import decoder
from headrace.worker.forking import signals
from headrace.worker.forking.process_ties import die_with, prctl
from headrace.worker.forking.standard_streams import STREAMS
from headrace.worker.messages import FromRunner, FromSupervisor, ToRunner, ToSupervisor

if TYPE_CHECKING:
    from headrace.app import Headrace

log = logging.getLogger("headrace.worker")


def make_once(app: Headrace) -> None:
    """What each child would make for itself otherwise."""
    for reads in (ToRunner, FromRunner, ToSupervisor, FromSupervisor):
        decoder(reads)
    prctl()
    for task in app.tasks.values():
        if task.kind == "fork":
            task.prepare()


def pipe(stack: contextlib.ExitStack) -> tuple[int, int]:
    """Both ends of a pipe, for reading and for writing, which the stack closes."""
    ends = os.pipe()
    for end in ends:
        stack.callback(os.close, end)
    return ends


def how(status: int) -> str:
    """How a process ended, in words."""
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def be_child(
    main: Callable[[socket.socket], int],
    sock: socket.socket,
    strangers: Sequence[socket.socket],
    parent: int,
    *,
    die_with_parent: bool,
) -> NoReturn:
    """Be a forked child: nothing of the parent's but its memory, and never its frames' ``finally`` or ``atexit``.

    Args:
        main: its work; the exit code.
        strangers: sockets of the parent's that it closes.
    """
    code = 70
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in (signal.SIGTERM, signal.SIGINT):
            # A Python handler, not SIG_IGN: what the user's code starts must not inherit deafness.
            signal.signal(number, signals.only_wake)
        for stranger in strangers:
            stranger.close()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        if die_with_parent:
            die_with(parent)
        code = main(sock)
    except BaseException:
        log.critical("a process of the worker failed", exc_info=True)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        STREAMS.drain()
        os._exit(code)
