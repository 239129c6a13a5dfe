"""Waiting in tests: the only place where a test may sleep. It polls a condition until a deadline."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import psutil

T = TypeVar("T")


def eventually(condition: Callable[[], T], timeout: float = 60, *, what: str = "", every: float = 0.005) -> T:
    """Return the first true value of ``condition``; fail when ``timeout`` seconds pass without one.

    The pause doubles from ``every`` up to 50 ms, so that a quick condition is seen at once; and it is twice as long as
    the condition took, so that one that runs a command leaves the cores to what it waits for. An exception of the
    condition passes through, but for one: where a process ended while it was looked at, it is looked at again.
    """
    end = time.monotonic() + timeout
    while True:
        value: T | None = None
        began = time.monotonic()
        with contextlib.suppress(psutil.NoSuchProcess):
            value = condition()
        if value:
            return value
        now = time.monotonic()
        if now > end:
            raise AssertionError(f"{what or condition} was not true within {timeout} s; last: {value!r}")
        time.sleep(max(every, min(2 * (now - began), 0.5)))
        every = min(every * 2, 0.05)


@contextlib.contextmanager
def held_up(seconds: float) -> Iterator[None]:
    """Hold up the main thread for so long, beginning a moment after this does."""
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: time.sleep(seconds))
    timer = threading.Timer(0.05, signal.pthread_kill, [threading.main_thread().ident, signal.SIGUSR1])
    timer.start()
    try:
        yield
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
