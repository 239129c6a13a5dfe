"""Carries out the steps of the cache's verbs: one driver for threads, one for event loops, over the same listener.

A verb is a generator. It yields a call of the store, or one of the steps here, and is sent what came of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import msgspec

from headrace.cache.computing import CacheReader, Computations, OneTimeSignal
from headrace.cache.listener import FIRST, Listener
from headrace.errors import OptionsError
from headrace.protocol.script import Call
from headrace.stopping import on_event_loop
from headrace.store.client import Client, adriven, driven

T = TypeVar("T")
Steps = Generator[Any, Any, T]


class Depart(msgspec.Struct, frozen=True):
    """A step: read over the link and wait for the reply."""

    name: str


class Start:
    """A step: have a link sought, and wait a moment for the first try."""


class Make(msgspec.Struct, frozen=True):
    """A step: have the caller's function compute the value."""

    function: Callable[[], Any]


class Join(msgspec.Struct, frozen=True):
    """A step: the computation of a name, and whether this reader leads it."""

    name: str
    tags: Sequence[str]
    reader: CacheReader


class Wait(msgspec.Struct, frozen=True):
    """A step: wait until something happens."""

    signal: OneTimeSignal
    seconds: float


class Driver:
    """Two ways to carry out the same steps."""

    def __init__(self, client: Client, listener: Listener, computations: Computations) -> None:
        self._client = client
        self._listener = listener
        self._computations = computations

    def run(self, steps: Steps[T]) -> T:
        return driven(steps, self._do)

    def _do(self, step: Any) -> Any:
        if _is_call(step):
            return self._client.run(step)
        if isinstance(step, Make):
            return _plain(step.function)
        if isinstance(step, Join):
            return self._computations.join(step.name, step.tags, step.reader, may_wait=not on_event_loop())
        landed = threading.Lock()
        landed.acquire()
        if isinstance(step, Wait):
            return step.signal.subscribe(landed.release) and landed.acquire(timeout=step.seconds)
        if isinstance(step, Start):
            return self._listener.start(landed.release) and landed.acquire(timeout=FIRST)
        flight = self._listener.depart(step.name, landed.release)
        if flight is not None and not landed.acquire(timeout=self._client.settings.timeout):
            self._listener.suspect(flight)
        return flight

    async def arun(self, steps: Steps[T]) -> T:
        return await adriven(steps, self._ado)

    async def _ado(self, step: Any) -> Any:
        if _is_call(step):
            return await self._client.arun(step)
        if isinstance(step, Make):
            made = step.function()
            return await made if inspect.isawaitable(made) else made
        if isinstance(step, Join):
            return self._computations.join(step.name, step.tags, step.reader, may_wait=True)
        loop = asyncio.get_running_loop()
        landed: asyncio.Future[None] = loop.create_future()

        def land() -> None:
            # The loop may have ended while the reply was under way.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_wake, landed)

        if isinstance(step, Wait):
            if step.signal.subscribe(land):
                await asyncio.wait((landed,), timeout=step.seconds)
            return None
        if isinstance(step, Start):
            if self._listener.start(land):
                await asyncio.wait((landed,), timeout=FIRST)
            return None
        flight = self._listener.depart(step.name, land)
        if flight is not None:
            try:
                await asyncio.wait((landed,), timeout=self._client.settings.timeout)
            except BaseException:
                self._listener.end(flight)
                raise
            if not landed.done():
                self._listener.suspect(flight)
        return flight


def _is_call(step: object) -> bool:
    return isinstance(step, Call)


def _plain(make: Callable[[], Any]) -> Any:
    """What ``make`` returns, where nobody can await it. Raises OptionsError."""
    made = make()
    if inspect.isawaitable(made):
        if inspect.iscoroutine(made):
            made.close()
        raise OptionsError("make returned an awaitable, which get cannot await: use await cache.aget(...) instead")
    return made


def _wake(landed: asyncio.Future[None]) -> None:
    if not landed.done():
        landed.set_result(None)
