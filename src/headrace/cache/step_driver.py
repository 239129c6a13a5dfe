"""Carries out the steps of the cache's verbs: one driver for threads, one for event loops, over the same listener.

A verb is a generator. It yields a call of the store or one of the steps here, and receives its outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import msgspec

from headrace.cache.fill_leases import CacheReader, FillLeases, OneTimeSignal
from headrace.cache.listener import FIRST, Listener
from headrace.errors import OptionsError
from headrace.protocol.script import Call
from headrace.stopping import on_event_loop
from headrace.store.client import Client, adriven, driven

T = TypeVar("T")
Steps = Generator[Any, Any, T]


class Read(msgspec.Struct, frozen=True):
    """A step: read over the link and wait for the reply."""

    name: str


class Start:
    """A step: start the listener, and wait shortly for its first try to connect."""


class Make(msgspec.Struct, frozen=True):
    """A step: call the user's function, which computes the value."""

    function: Callable[[], Any]


class Join(msgspec.Struct, frozen=True):
    """A step: get the fill of a name, and whether this reader leads it."""

    name: str
    tags: Sequence[str]
    reader: CacheReader


class Wait(msgspec.Struct, frozen=True):
    """A step: wait for a signal."""

    signal: OneTimeSignal
    seconds: float


class Driver:
    """Carries out steps, blocking (``run``) or in an event loop (``arun``)."""

    def __init__(self, client: Client, listener: Listener, fills: FillLeases) -> None:
        self._client = client
        self._listener = listener
        self._fills = fills

    def run(self, steps: Steps[T]) -> T:
        return driven(steps, self._do)

    def _do(self, step: Any) -> Any:
        if _is_call(step):
            return self._client.run(step)
        if isinstance(step, Make):
            return _plain(step.function)
        if isinstance(step, Join):
            return self._fills.join(step.name, step.tags, step.reader, may_wait=not on_event_loop())
        on_end = threading.Lock()
        on_end.acquire()
        if isinstance(step, Wait):
            return step.signal.subscribe(on_end.release) and on_end.acquire(timeout=step.seconds)
        if isinstance(step, Start):
            return self._listener.start(on_end.release) and on_end.acquire(timeout=FIRST)
        pending = self._listener.send_read(step.name, on_end.release)
        if pending is not None and not on_end.acquire(timeout=self._client.settings.timeout):
            self._listener.on_overdue(pending)
        return pending

    async def arun(self, steps: Steps[T]) -> T:
        return await adriven(steps, self._ado)

    async def _ado(self, step: Any) -> Any:
        if _is_call(step):
            return await self._client.arun(step)
        if isinstance(step, Make):
            made = step.function()
            return await made if inspect.isawaitable(made) else made
        if isinstance(step, Join):
            return self._fills.join(step.name, step.tags, step.reader, may_wait=True)
        loop = asyncio.get_running_loop()
        on_end: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            # The loop may have ended before the reply came.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_wake, on_end)

        if isinstance(step, Wait):
            if step.signal.subscribe(wake):
                await asyncio.wait((on_end,), timeout=step.seconds)
            return None
        if isinstance(step, Start):
            if self._listener.start(wake):
                await asyncio.wait((on_end,), timeout=FIRST)
            return None
        pending = self._listener.send_read(step.name, wake)
        if pending is not None:
            try:
                await asyncio.wait((on_end,), timeout=self._client.settings.timeout)
            except BaseException:
                self._listener.end(pending)
                raise
            if not on_end.done():
                self._listener.on_overdue(pending)
        return pending


def _is_call(step: object) -> bool:
    return isinstance(step, Call)


def _plain(make: Callable[[], Any]) -> Any:
    """The value of ``make``, which must not be awaitable here. Raises OptionsError."""
    made = make()
    if inspect.isawaitable(made):
        if inspect.iscoroutine(made):
            made.close()
        raise OptionsError("make returned an awaitable, which get cannot await: use await cache.aget(...) instead")
    return made


def _wake(on_end: asyncio.Future[None]) -> None:
    if not on_end.done():
        on_end.set_result(None)
