"""Ties between a process and those that it comes from or brings forth. The kernel's are Linux only."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from functools import cache
from typing import NoReturn

# Exit code of a process of ours that its own code ended.
FAULTY = 70


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
