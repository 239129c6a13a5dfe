"""Ties between a process and those that it comes from or brings forth. Linux only; elsewhere others see to it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from functools import cache


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


@cache
def prctl() -> Callable[[int, int], int]:
    """Linux's; looked up once, since the look-up takes longer than the call."""
    return ctypes.CDLL(None).prctl if sys.platform == "linux" else max
