"""Ties between a process and those that it comes from or brings forth. The kernel's are Linux only."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

from headrace.worker.channel import Channel

# Signal handlers of ours are defined in here.
_OURS = "headrace.worker."

# Exit code of a process of ours that its own code ended.
FAULTY = 70


class NoRoom(Exception):
    """A process of ours cannot begin its work: the system has no room for a process or thread of its own."""


def die_with(parent: int, by: int = signal.SIGKILL) -> None:
    """Ask the kernel to send this process a signal when its parent ends, whose process id this is."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        prctl()(set_parent_death_signal, by)
        if os.getppid() != parent:
            os._exit(0)


def adopt_orphans() -> None:
    """Ask the kernel that descendants whose parent ends become children of this process, not of init."""
    if sys.platform == "linux":
        set_child_subreaper = 36
        prctl()(set_child_subreaper, 1)


def let_fork(channel: Channel[Any]) -> None:
    """From now on, what this process forks is an ordinary process: no runner, with the signal handlers of any program.

    A runner handles TERM and INT by doing nothing, since its supervisor decides when it ends. A child that inherited
    that could not be terminated, and ``multiprocessing.Pool`` waited for its processes for ever. A signal that reaches
    a child before its handlers are the usual ones would be lost, so all are blocked around the fork. Programs that a
    job starts (``subprocess``, ``spawn``, ``forkserver``) need nothing of this: handlers do not survive an exec.

    Args:
        channel: closed in the child, which must neither hold it open nor speak in it.
    """
    mask = threading.local()

    def before() -> None:
        mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    def after_in_parent() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask.before)

    def after_in_child() -> None:
        channel.close()
        faulthandler.unregister(signal.SIGUSR2)
        for number in signal.valid_signals():
            if getattr(signal.getsignal(number), "__module__", "").startswith(_OURS):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask.before)

    os.register_at_fork(before=before, after_in_parent=after_in_parent, after_in_child=after_in_child)


def end_faulty() -> NoReturn:
    """End this runner at once: its own code failed, and only the death of its process tells that to the dispatcher.

    The jobs that it holds get a crash outcome, with the traceback as the last lines of stderr.
    """
    traceback.print_exc()
    os._exit(FAULTY)


@cache
def prctl() -> Callable[[int, int], int]:
    """Linux's; looked up once, since the look-up takes longer than the call."""
    return ctypes.CDLL(None).prctl if sys.platform == "linux" else max
