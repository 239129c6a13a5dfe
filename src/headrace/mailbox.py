"""A queue for one reader whose waits end in time.

Before Python 3.13 a wait of ``queue.SimpleQueue`` may never end: where its thread is held up until the timeout is over,
it takes what is left of that, which is below zero, for no timeout.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from queue import Empty
from typing import Generic, TypeVar

from headrace.clock import monotonic

T = TypeVar("T")


class Mailbox(Generic[T]):
    """What any code puts for one thread that waits for it. A signal's handler and a finalizer may put, too."""

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
        with suppress(RuntimeError):  # it is free
            self._none.release()

    def get(self, timeout: float | None = None) -> T:
        """The oldest item. Raises Empty: none came within ``timeout`` seconds; None waits without end."""
        end = None if timeout is None else monotonic() + timeout
        while not self._items:
            left = -1.0 if end is None else end - monotonic()
            if end is not None and left <= 0:
                raise Empty
            self._none.acquire(timeout=min(left, threading.TIMEOUT_MAX))
        return self._items.popleft()
