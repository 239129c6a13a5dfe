"""The connections of a process's threads, or of one event loop: a bound, a line of callers beyond it, an end when idle.

A call takes an idle connection, or a permit to open one, or waits in line for either until its time is over. No lock
guards this: each operation on a deque is atomic. A caller that gives back appends first and reads the line second; a
caller that waits enters the line first and looks for a connection second. So one of the two sees the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from redis import exceptions as driver

from headrace.clock import monotonic

C = TypeVar("C")

# Seconds without a call after which a connection is closed.
IDLE = 10.0


class AllInUse(driver.TimeoutError):
    """A call got no connection in time."""


class ConnectionPool(Generic[C]):
    """Idle connections, and permits to open more.

    Attributes:
        idle: connections that no call uses, the one that was used last at the right. Each has the attribute ``used``:
            when its last call began (monotonic seconds).
        line: how each caller that waits is handed a connection, or None: a permit.
    """

    def __init__(self, most: int) -> None:
        self.idle: deque[C] = deque()
        self.line: deque[Callable[[C | None], None]] = deque()
        self._most = most
        self._permits: deque[None] = deque([None] * most)
        self._ending = threading.Lock()
        self._wake = threading.Event()
        # A loop keeps no task alive.
        self._closing: asyncio.Task[None] | None = None

    @property
    def full(self) -> bool:
        """Whether a call must wait in line."""
        return not self.idle and not self._permits

    @property
    def several(self) -> bool:
        return len(self._permits) < self._most - 1

    def take(self) -> C | None:
        """An idle connection, or None: the caller opens one. Raises IndexError: neither is left."""
        try:
            return self.idle.pop()
        except IndexError:
            return self._permits.pop()

    def give(self, connection: C | None) -> None:
        """Give back a connection, or None: the permit of one that was closed or not opened."""
        if connection is None:
            self._permits.append(None)
            self._wake.set()
        else:
            self.idle.append(connection)
        if self.line:
            self.serve()

    def serve(self) -> None:
        while self.line:
            try:
                found = self.take()
            except IndexError:
                return
            try:
                self.line.popleft()(found)
            except IndexError:  # the last one in line has left
                self._permits.append(None) if found is None else self.idle.append(found)

    def wait(self, seconds: float) -> C | None:
        """As :meth:`take`, in line. Raises AllInUse: nothing was given back to this caller for that time."""
        inbox: queue.SimpleQueue[C | None] = queue.SimpleQueue()
        with self._in_line(inbox.put, inbox.get):
            return inbox.get(timeout=max(0.0, seconds))

    async def await_(self, seconds: float) -> C | None:
        inbox: asyncio.Queue[C | None] = asyncio.Queue()
        with self._in_line(inbox.put_nowait, inbox.get_nowait):
            async with asyncio.timeout(seconds):
                return await inbox.get()

    @contextlib.contextmanager
    def _in_line(self, put: Callable[[C | None], None], get: Callable[[], C | None]) -> Generator[None]:
        self.line.append(put)
        self.serve()
        try:
            yield
        except BaseException as error:
            try:
                self.line.remove(put)
            except ValueError:  # it was handed something meanwhile
                self.give(get())
            if isinstance(error, (queue.Empty, TimeoutError)):
                raise AllInUse(f"all {self._most} connections of this process are in use") from None
            raise

    def expired(self) -> list[Any]:
        """Take out the connections that were idle for too long, except the last one that is open. The caller closes
        each of them and gives back its permit.
        """
        found: list[Any] = []
        with contextlib.suppress(IndexError):
            while len(self._permits) + len(found) < self._most - 1:
                oldest: Any = self.idle.popleft()
                if oldest.used > monotonic() - IDLE:
                    self.idle.appendleft(oldest)
                    break
                found.append(oldest)
        self.serve()
        return found

    def end_idle(self) -> None:
        """Start the thread that closes idle connections, unless it runs: a resting program does not call any more. It
        lives while several connections are open, so a program of one thread never has it.
        """
        if self.several and self._ending.acquire(blocking=False):
            try:
                threading.Thread(target=self._end, name="headrace-idle", daemon=True).start()
            except RuntimeError:  # the system has no room for a thread, or the interpreter ends
                self._ending.release()

    def _end(self) -> None:
        while self.several:
            self._wake.clear()
            self._wake.wait(IDLE / 2)
            for connection in self.expired():
                connection.close()
                self.give(None)
        self._ending.release()
        self.end_idle()  # another may have been opened since

    def end_idle_on(self, loop: asyncio.AbstractEventLoop, close: Callable[..., Coroutine[Any, Any, None]]) -> None:
        """Have the loop ``close(*connections)`` what is idle for too long, while several connections are open."""
        if self.several and self._ending.acquire(blocking=False):
            loop.call_later(IDLE / 2, self._end_on, loop, close)

    def _end_on(self, loop: asyncio.AbstractEventLoop, close: Callable[..., Coroutine[Any, Any, None]]) -> None:
        self._ending.release()
        if expired := self.expired():
            self._closing = loop.create_task(close(*expired))
        self.end_idle_on(loop, close)
