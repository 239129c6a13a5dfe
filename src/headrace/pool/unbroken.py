"""Waiting that an exception raised asynchronously (a Ctrl-C, ``PyThreadState_SetAsyncExc``) cannot leave half done.

The interpreter raises such an exception after a call, at the start of a function and when a loop repeats: never inside
a function of C, and never between ``with lock:`` and its block. ``threading.Condition`` and ``threading.Event`` enter
their lock in a Python function, so an exception there leaves it locked. Owns no thread.
"""

from __future__ import annotations

import threading
from _thread import RLock, allocate_lock, get_ident, start_new_thread
from collections.abc import Callable
from contextlib import suppress
from threading import TIMEOUT_MAX, Thread, current_thread


class CallCondition(RLock):  # type: ignore[misc]  # final for type checkers only
    """The condition of one call: what :class:`concurrent.futures.Future` uses of :class:`threading.Condition`."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def wait(self, timeout: float | None = None) -> bool:
        bell = allocate_lock()
        bell.acquire()
        self._waiting.append(bell.release)
        try:
            self.release()
            return bell.acquire(timeout=-1 if timeout is None else min(max(timeout, 0), TIMEOUT_MAX))
        finally:
            self.acquire()
            if bell.locked() and bell.release in self._waiting:
                self._waiting.remove(bell.release)

    def notify_all(self) -> None:
        waiting = self._waiting
        while waiting:
            waiting.pop()()


class Latch:
    """Opens once."""

    __slots__ = ("_waiting", "opened")

    def __init__(self) -> None:
        self.opened = False
        self._waiting: list[Callable[[], None]] = []

    def open(self) -> None:
        self.opened = True
        while self._waiting:
            self._waiting.pop()()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is open; False when ``timeout`` seconds passed before."""
        bell = allocate_lock()
        bell.acquire()
        self._waiting.append(bell.release)
        # The thread that opens it looks for us after this, or we see that it is open.
        if not self.opened and not bell.acquire(timeout=-1 if timeout is None else min(max(timeout, 0), TIMEOUT_MAX)):
            with suppress(ValueError):
                self._waiting.remove(bell.release)
        return self.opened


class MemberThread:
    """A thread of the pool's own, and its end: ``Thread.join`` takes a thread for ended whose waiting was cut short."""

    def __init__(self, live: Callable[[], None], name: str) -> None:
        self._ended = Latch()
        self._live = live
        # A daemon, since the interpreter's end would wait for others before the pool is told to finish.
        self.thread = Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        try:
            self._live()
        finally:
            self._ended.open()

    def join(self, timeout: float | None) -> bool:
        """Wait for its end; True when it has ended, or is the one that asks."""
        if self.thread is current_thread():
            return True
        if self._ended.wait(timeout):
            self.thread.join()
            return True
        return False


def apart(step: Callable[[], None]) -> None:
    """Run a step in a thread of its own and wait for it: what is raised in this thread cannot cut the step short."""
    latch, errors = Latch(), list[BaseException]()

    def run() -> None:
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            errors.append(error)
        finally:
            # Where the step asked for current_thread(), threading keeps an entry (before Python 3.13: for ever).
            vars(threading).get("_active", {}).pop(get_ident(), None)
            latch.open()

    try:
        start_new_thread(run, ())
    except RuntimeError:
        step()  # no thread can be started; at the interpreter's end none may
        return
    latch.wait()
    if errors:
        raise errors[0]
