"""A runner writes its stacks to stderr when it is asked to, and its jobs notice nothing.

The interpreter writes the main thread's at once, also while C code holds its lock. Those of the other threads are
written by Python code, under the lock: while they run their frames come and go, and ``faulthandler`` without the lock
reads frames that are gone, which ended the process with its jobs.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from types import FrameType

from headrace.model.stacks import stack

# Threads whose stacks are written at most.
MOST_THREADS = 100


def answer_stacks() -> None:
    """From now on write the stacks of all threads to stderr on USR2."""
    signal.signal(signal.SIGUSR2, _write_others)
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=False, chain=True)


def _write_others(_number: int, _frame: FrameType | None) -> None:
    """Write the stacks of all threads but the main one, which runs this."""
    frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - documented
    del frames[threading.get_ident()]
    if frames:
        os.write(2, b"".join(stack(thread, frame) for thread, frame in list(frames.items())[:MOST_THREADS]))
