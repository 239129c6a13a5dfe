"""A queue for one reader whose waits end in time.

Those of ``queue.SimpleQueue`` may not, before Python 3.13: where its thread is held up just after it has noted the
time, what is left of the timeout is below zero, and it waits without end.
"""

from __future__ import annotations

import threading
from collections import deque
from queue import Empty
from typing import Generic, TypeVar

from headrace.clock import monotonic

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Items that any code puts, a signal's handler or a finalizer, too, for one thread that waits for them."""

    __slots__ = ("_items", "_none")

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        # Held while nothing was put since the reader last waited.
        self._none = threading.Lock()
        self._none.acquire()

    def empty(self) -> bool:
        return not self._items

    def put(self, item: T) -> None:
        self._items.append(item)
        try:
            self._none.release()
        except RuntimeError:  # it is free
            return

    def get(self, timeout: float | None = None) -> T:
        """The oldest item. Raises Empty: none came within ``timeout`` seconds; None waits without end."""
        end = None if timeout is None else monotonic() + timeout
        while not self._items:
            left = -1.0 if end is None else end - monotonic()
            if end is not None and left <= 0:
                raise Empty
            self._none.acquire(timeout=min(left, threading.TIMEOUT_MAX))
        return self._items.popleft()
