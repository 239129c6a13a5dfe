"""Waiting in tests: the only place where a test may sleep. It polls a condition until a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], timeout: float = 5, *, what: str = "", every: float = 0.005) -> T:
    """Return the first true value of ``condition``; fail when ``timeout`` seconds pass without one.

    The pause doubles from ``every`` up to 50 ms, so that a quick condition is seen at once and a slow one
    costs no core. An exception of the condition passes through.
    """
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what or condition} was not true within {timeout} s; last: {value!r}")
        time.sleep(every)
        every = min(every * 2, 0.05)
