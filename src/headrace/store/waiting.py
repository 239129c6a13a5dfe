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
from headrace.mailbox import Mailbox
from headrace.protocol.keys import Keys
from headrace.protocol.produce import BATCH, Look, Watched, end_of, watch
from headrace.protocol.script import Call
from headrace.store.client import Client, adriven, driven

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
# Steps that yield replies where threads wait, and what gives them, to be awaited, on an event loop.
Waiting: TypeAlias = Generator[Any, Any, T]

# A result of more bytes comes over the caller's own connection: the server ends a subscribed one that owes too much.
INLINE = 1 << 16
# A thread leaves its wait this often (seconds): an exception that another thread raises in it comes no sooner.
SLICE = 5.0


def job_end(keys: Keys, id: str, wait: int) -> Call[Watched]:
    """Look whether a job has ended; what it returned comes with a mere look only, and where it is small."""
    return watch(keys, id, wait, most=0 if wait else INLINE)


def job_change(keys: Keys, id: str, wait: int) -> Call[Watched]:
    return watch(keys, id, wait, most=0, follow=True)


class Inbox:
    """What a thread is told, in order."""

    def __init__(self) -> None:
        self._queue: Mailbox[Any] = Mailbox()
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
                return _message(self._queue.get(min(left, SLICE)))
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


def _itself(told: Any) -> Any:
    return told


def _value(values: list[Any]) -> list[Any]:
    for value in values:
        _message(value)
    return values


def _asked(client: Client, store: Any, inbox_of: Callable[[], Any], calls: Sequence[Call[Any]]) -> Waiting[list[Any]]:
    found: list[Any] = []
    for first in range(0, len(calls), BATCH):
        piece = calls[first : first + BATCH]
        if client.ends.first():
            try:
                found += yield store.run_all(piece)
            finally:
                client.ends.second()
        else:
            inbox = inbox_of()
            client.ends.ask(piece, inbox.put)
            found += _value((yield inbox.get(None)))
    return found


def ask_all(client: Client, calls: Sequence[Call[Any]]) -> list[Any]:
    """Values of calls, over the store's connection for a lone caller, else the listener's. Cost: a trip per 100."""
    return driven(_asked(client, client.store, Inbox, calls), _itself)


async def aask_all(client: Client, calls: Sequence[Call[Any]]) -> list[Any]:
    return await adriven(_asked(client, client.astore, AsyncInbox, calls), _itself)


def _ended(
    client: Client, store: Any, inbox_of: Callable[[], Any], look: Look, id: str, timeout: float | None
) -> Waiting[Any]:
    end = None if timeout is None else monotonic() + timeout
    (seen,) = yield from _asked(client, store, inbox_of, [look(client.keys, id, 0)])
    while not end_of(seen) and (end is None or monotonic() < end):
        inbox = inbox_of()
        client.ends.add([(id, look)], inbox.put)
        try:
            told = yield inbox.get(end)
        finally:
            client.ends.remove([id], inbox.put)
        if told is None and client.ends.fault:
            return seen
        (seen,) = yield from _asked(client, store, inbox_of, [look(client.keys, id, 0)])
    return seen


def wait_end(client: Client, look: Look, id: str, timeout: float | None) -> Any:
    """What ``look`` sees of a job or workflow that has ended, or of one that has not when ``timeout`` seconds are over.
    Does not poll. While the server does not answer, the last that was seen is returned in time. Cost: one round trip
    when it has ended; three, shared with others who wait, when it has not.
    """
    return driven(_ended(client, client.store, Inbox, look, id, timeout), _itself)


async def await_end(client: Client, look: Look, id: str, timeout: float | None) -> Any:
    return await adriven(_ended(client, await client.ready(), AsyncInbox, look, id, timeout), _itself)


def wait_job(client: Client, id: str, timeout: float | None) -> Watched:
    """A job's end with what it returned, or its unfinished state when ``timeout`` seconds are over."""
    seen: Watched = wait_end(client, job_end, id, timeout)
    return seen if seen.whole else client.store.run(watch(client.keys, id, 0))


async def await_job(client: Client, id: str, timeout: float | None) -> Watched:
    seen: Watched = await await_end(client, job_end, id, timeout)
    return seen if seen.whole else await client.astore.run(watch(client.keys, id, 0))
