"""Carries out the steps of a drain: in a thread, or on an event loop.

Owns the kit's own stores, which no fault meets, and the rule that one drain runs at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, TypeVar

from headrace.app import Headrace
from headrace.errors import WaitRefused
from headrace.protocol.limit_verbs import declare_limits
from headrace.settings import Settings
from headrace.stopping import on_event_loop
from headrace.store.client import adriven, driven
from headrace.testing.drain import Asked, DrainWorker, RunHere, Steps
from headrace.testing.drained import DrainError, Wishes
from headrace.testing.faults import Faults
from headrace.testing.kit_store import AsyncKitStore, KitStore, Wire
from headrace.testing.perform_here import Performer
from headrace.testing.virtual_clock import VirtualClock

T = TypeVar("T")
Make = Callable[[DrainWorker], Steps[T]]


class DrainDriver:
    """Runs the drains of one kit.

    Attributes:
        busy: whether one is under way.
        count: of the drains so far.
        dead: incarnations that a test let die.
    """

    def __init__(self, app: Headrace, clock: VirtualClock, faults: Faults, url: str, settings: Settings) -> None:
        self.busy = False
        self.count = 0
        self.dead: set[str] = set()
        self._app = app
        self._clock = clock
        self._faults = faults
        self._store = KitStore(url, settings, Wire(clock))
        self._astore = AsyncKitStore(url, settings, Wire(clock))

    def declare(self) -> None:
        """Tell the store which limits the code has, as its workers have done before a program enqueues."""
        if (limits := self._app.limits.declared()).limits:
            self._store.run(declare_limits(self._store.keys, "", self._app.tasks, limits))

    def run(self, make: Make[T], wishes: Wishes) -> T:
        """Carry out a drain in this thread.

        Raises:
            WaitRefused: an event loop runs in it.
            DrainError: another one is under way.
            BaseException: the first error of a job, where that is wished.
        """
        if on_event_loop():
            raise WaitRefused("drain() would block the event loop: await adrain()")
        with self._begun(wishes) as (drain, performer):

            def do(asked: Asked) -> Any:
                if isinstance(asked, RunHere):
                    return performer.run(asked.claim, asked.crash)
                return self._store.run_all(asked) if isinstance(asked, list) else self._store.run(asked)

            try:
                value = driven(make(drain), do)
            finally:
                performer.close()
                if drain.owner and not drain.died:
                    self._store.run(drain.leave())
        return self._ended(drain, value)

    async def arun(self, make: Make[T], wishes: Wishes) -> T:
        with self._begun(wishes) as (drain, performer):

            def do(asked: Asked) -> Awaitable[Any]:
                if isinstance(asked, RunHere):
                    return performer.arun(asked.claim, asked.crash)
                return self._astore.run_all(asked) if isinstance(asked, list) else self._astore.run(asked)

            try:
                value = await adriven(make(drain), do)
            finally:
                await performer.aclose()
                if drain.owner and not drain.died:
                    await self._astore.run(drain.leave())
        return self._ended(drain, value)

    def run_apart(self, make: Make[T], wishes: Wishes) -> T:
        """As :meth:`run`, also where an event loop runs: then in a thread of its own, and this one waits."""
        if not on_event_loop():
            return self.run(make, wishes)
        found: list[T] = []
        context = copy_context()
        thread = threading.Thread(target=lambda: found.append(context.run(self.run, make, wishes)), name="drain")
        thread.start()
        thread.join()
        if not found:
            raise DrainError("the drain of an inline enqueue ended with an error: its traceback is above")
        return found[0]

    def close(self) -> None:
        """Close the connections of the kit."""
        self._store.close()
        self._astore.leave_to_loop()

    @contextmanager
    def _begun(self, wishes: Wishes) -> Generator[tuple[DrainWorker, Performer], None, None]:
        if self.busy:
            raise DrainError("a drain is under way: a job cannot drain, and one drain runs at a time")
        self.busy, performer = True, Performer(self._app)
        self.count += 1
        try:
            yield DrainWorker(self._app, self._clock, self._faults, wishes), performer
        finally:
            self.busy = False

    def _ended(self, drain: DrainWorker, value: T) -> T:
        if drain.died:
            self.dead.add(drain.owner)
        if drain.error is not None:
            raise drain.error
        return value
