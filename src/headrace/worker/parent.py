"""A child's tie to the process that forked it: it does not outlive it. Linux only; elsewhere others see to it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from functools import cache


def die_with(parent: int) -> None:
    """Ask the kernel to end this process with its parent, whose process id this is."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        death_signal()(set_parent_death_signal, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


@cache
def death_signal() -> Callable[[int, int], int]:
    """Linux's ``prctl``; looked up once, since the look-up takes longer than the call."""
    return ctypes.CDLL(None).prctl if sys.platform == "linux" else max
