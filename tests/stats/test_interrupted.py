"""Code that counts may be interrupted at any step, as by the time limit of a job: no lock stays behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

from headrace.stats import Stats


class Cut(BaseException):
    """As a soft time limit is raised."""


def cut(*_: Any) -> None:
    raise Cut


def free(lock: Any) -> bool:
    """Whether another thread can have it."""
    found: list[bool] = []

    def look() -> None:
        found.append(lock.acquire(timeout=5))
        if found[0]:
            lock.release()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found[0]


def test_an_interrupt_amid_a_count_leaves_the_buffer_to_others(make_stats: Callable[..., Stats]) -> None:
    stats = make_stats()
    before = signal.signal(signal.SIGALRM, cut)
    try:
        for number in range(1000):
            try:
                # Ever another step of a count is hit.
                signal.setitimer(signal.ITIMER_REAL, 0.000_1 + number / 1e7)
                while True:
                    stats.add("a", {"n": 1})
            except Cut:
                pass
            if number % 20 == 0:
                assert free(stats._writer.buffer.lock)
        assert free(stats._writer.buffer.lock)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
