"""Code that counts may be interrupted at any step, as by the time limit of a job: no lock stays behind."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from headrace.stats import Buffer, Stats
from headrace.stats.writer import Flusher
from tests.deadline import eventually


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


def test_an_interrupt_amid_a_wait_for_room_leaves_the_flushes_to_others() -> None:
    flusher = Flusher(Buffer(), lambda _batch: [], 1, 1.0)

    def wait() -> None:
        with contextlib.suppress(Cut):
            flusher.make_room()

    waiter = threading.Thread(target=wait)
    with flusher._sending:
        waiter.start()
        eventually(lambda: sys._current_frames()[waiter.ident or 0].f_code.co_filename.endswith("writer.py"))
        # As the time limit of a job in a thread: raised once the thread has the lock that it waits for.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(waiter.ident or 0), ctypes.py_object(Cut))
    waiter.join()
    # From here: another thread could have the waiter's number, and with it the lock.
    assert flusher._sending.acquire(timeout=5)
