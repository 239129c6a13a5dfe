"""Waits for the ends of jobs and workflows, of threads and of an event loop's tasks, by the application's one listener.

Each wait is an inbox that the listener fills. The first look of a caller that waits alone goes over a connection of the
store, everything else over the listener's: a thousand callers that wait take no connections of their own.
"""

from __future__ import annotations

import contextlib
import copy
import queue
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from headrace.clock import monotonic
from headrace.protocol.keys import Keys
from headrace.protocol.produce import BATCH, Look, Watched, end_of, watch
from headrace.protocol.script import Call
from headrace.store.client import Client, adriven, driven

if TYPE_CHECKING:
    import asyncio

# A result of more bytes comes over the caller's own connection: the server ends a subscribed one that owes too much.
INLINE = 1 << 16
# A thread leaves its wait this often (seconds): an exception that another thread raises in it comes no sooner.
SLICE = 5.0

T = TypeVar("T")


def job_end(keys: Keys, id: str, wait: int) -> Call[Watched]:
    """Look whether a job has ended; what it returned comes with a mere look only, and where it is small."""
    return watch(keys, id, wait, most=0 if wait else INLINE)


def job_change(keys: Keys, id: str, wait: int) -> Call[Watched]:
    """As :func:`job_end`, and have each change of it announced."""
    return watch(keys, id, wait, most=0, follow=True)


class Inbox:
    """What a thread is told, in order."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.put = self._queue.put

    def ring(self, message: Any) -> None:
        """Put a message where none waits that is as good: the reader looks at the store after each."""
        if self._queue.empty() or isinstance(message, Exception):
            self._queue.put(message)

    def get(self, end: float | None) -> Any:
        """The next message, None when ``end`` (monotonic) comes first. Raises HeadraceError: this was told instead."""
        while True:
            left = SLICE if end is None else end - monotonic()
            try:
                return _message(self._queue.get(timeout=max(0.0, min(left, SLICE))))
            except queue.Empty:
                if left <= SLICE and end is not None and monotonic() >= end:
                    return None


class AsyncInbox:
    """What a task of this event loop is told."""

    def __init__(self) -> None:
        import asyncio  # only a program with an event loop pays for it

        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, message: Any) -> None:
        # The loop may have ended, and the wait with it.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._queue.put_nowait, message)

    def ring(self, message: Any) -> None:
        """See :meth:`Inbox.ring`."""
        if self._queue.empty() or isinstance(message, Exception):
            self.put(message)

    async def get(self, end: float | None) -> Any:
        import asyncio

        try:
            async with asyncio.timeout(None if end is None else max(0.0, end - monotonic())):
                return _message(await self._queue.get())
        except TimeoutError:
            return None


def _message(told: Any) -> Any:
    # Each who waits raises an error of his own: one that several threads raise grows a traceback of all of them.
    if isinstance(told, Exception):
        raise copy.copy(told)
    return told


def _value(values: list[Any]) -> list[Any]:
    for value in values:
        _message(value)
    return values


# What one waits for: values of calls, or the next message of an inbox until an end.
Waits: TypeAlias = Generator[list[Call[Any]] | tuple[Any, float | None], Any, T]


def _wait(client: Client, steps: Waits[T]) -> T:
    return driven(steps, lambda step: client.store.run_all(step) if isinstance(step, list) else step[0].get(step[1]))


async def _await(client: Client, steps: Waits[T]) -> T:
    await client.ready()
    return await adriven(
        steps, lambda step: client.astore.run_all(step) if isinstance(step, list) else step[0].get(step[1])
    )


def _asked(client: Client, calls: Sequence[Call[Any]], inbox_of: Callable[[], Inbox | AsyncInbox]) -> Waits[list[Any]]:
    found: list[Any] = []
    for first in range(0, len(calls), BATCH):
        piece = [*calls[first : first + BATCH]]
        if client.ends.first():
            try:
                found += yield piece
            finally:
                client.ends.second()
        else:
            inbox = inbox_of()
            client.ends.ask(piece, inbox.put)
            found += _value((yield inbox, None))
    return found


def _ended(
    client: Client, look: Look, id: str, timeout: float | None, inbox_of: Callable[[], Inbox | AsyncInbox]
) -> Waits[Any]:
    end = None if timeout is None else monotonic() + timeout
    (seen,) = yield from _asked(client, [look(client.keys, id, 0)], inbox_of)
    while not end_of(seen) and (end is None or monotonic() < end):
        inbox = inbox_of()
        client.ends.add([(id, look)], inbox.put)
        try:
            told = yield inbox, end
        finally:
            client.ends.remove([id], inbox.put)
        if told is None and client.ends.fault:
            return seen
        (seen,) = yield from _asked(client, [look(client.keys, id, 0)], inbox_of)
    if isinstance(seen, Watched) and not seen.whole:
        (seen,) = yield [watch(client.keys, id, 0)]
    return seen


def ask_all(client: Client, calls: Sequence[Call[Any]]) -> list[Any]:
    """Values of calls: for a caller that is alone over the store's connection, else over the listener's. Cost: one
    round trip per 100 calls; over the listener's, shared with others.
    """
    return _wait(client, _asked(client, calls, Inbox))


async def aask_all(client: Client, calls: Sequence[Call[Any]]) -> list[Any]:
    return await _await(client, _asked(client, calls, AsyncInbox))


def wait_end(client: Client, look: Look, id: str, timeout: float | None) -> Any:
    """What ``look`` sees of a job or workflow that has ended, or of one that has not when ``timeout`` seconds are over;
    all of what a job returned. Does not poll. While the server does not answer, the last that was seen is returned in
    time. Cost: one round trip when it has ended; three, shared with others who wait, when it has not.
    """
    return _wait(client, _ended(client, look, id, timeout, Inbox))


async def await_end(client: Client, look: Look, id: str, timeout: float | None) -> Any:
    return await _await(client, _ended(client, look, id, timeout, AsyncInbox))
