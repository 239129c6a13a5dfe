"""A program that holds a limit outside of jobs: it passes the same gates, with a lease of its own.

Owns the lease's renewal while the block runs: a thread, or a task of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import threading
import time
from typing import TYPE_CHECKING, Self

from headrace.errors import HeadraceError, LimitTimeout, OptionsError, UnknownLimit
from headrace.model.limit_state import ALL
from headrace.protocol.limit_verbs import HoldAnswer, hold_limit, keep_hold, release_hold
from headrace.protocol.script import Call
from headrace.settings import microseconds

if TYPE_CHECKING:
    from headrace.model.limit_rules import LimitRule
    from headrace.store.client import Client

log = logging.getLogger("headrace")

# Seconds between two looks at a closed limit whose opening is not known: from the first to the longest.
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.25


class LimitHold:
    """``with app.limits["api"].hold(wait=5):`` the block runs while the program holds the limit.

    Attributes:
        lost: the lease was over before the block ended, since the server could not be reached: others may hold it.
    """

    __slots__ = ("_client", "_holder", "_named", "_over", "_rule", "_task", "_wait", "lost")

    def __init__(self, client: Client, rule: LimitRule, named: str, wait: float | None) -> None:
        """Use ``app.limits[name].hold()``."""
        self.lost = False
        self._client, self._rule, self._named, self._wait = client, rule, named, wait
        self._holder = ""
        self._over: threading.Event | None = None
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        begun, attempt = time.monotonic(), 0
        self._begin()
        try:
            while (pause := self._pause(self._client.run(self._hold()), begun, attempt)) is not None:
                attempt += 1
                time.sleep(pause)
            self._over = threading.Event()
            threading.Thread(target=self._renew, args=(self._over,), name="headrace limit", daemon=True).start()
        except HeadraceError:
            raise
        except BaseException:
            # The server may have given it just before the interrupt, and nobody would leave this block.
            with contextlib.suppress(HeadraceError):
                self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._over is not None:
            self._over.set()
        self._client.run(self._release())

    async def __aenter__(self) -> Self:
        begun, attempt = time.monotonic(), 0
        self._begin()
        try:
            while (pause := self._pause(await self._client.arun(self._hold()), begun, attempt)) is not None:
                attempt += 1
                await asyncio.sleep(pause)
        except HeadraceError:
            raise
        except BaseException:
            # As above; a cancellation comes at any of these.
            with contextlib.suppress(HeadraceError):
                await self.__aexit__(None, None, None)
            raise
        self._task = asyncio.create_task(self._arenew())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._client.arun(self._release())

    def _begin(self) -> None:
        if self._holder:
            raise OptionsError(f"this hold of limit {self._rule.name} was used already: make another with hold()")
        self._holder = f"{os.urandom(8).hex()}.{self._lease}"

    def _pause(self, answer: HoldAnswer, begun: float, attempt: int) -> float | None:
        """Seconds until the next look; None: it is held.

        Raises:
            LimitTimeout: there is no time left.
            UnknownLimit, OptionsError: it never will be.
        """
        name = self._rule.name
        match answer.word:
            case "held":
                return None
            case "unknown":
                raise UnknownLimit(f"neither the store nor this program knows a limit {name}")
            case "shared":
                raise OptionsError(f"limit {name} goes by no value: hold it without one")
            case "values":
                raise OptionsError(f"limit {name} goes by a value: hold(value) says which")
            case _:
                pass
        left = float("inf") if self._wait is None else self._wait - (time.monotonic() - begun)
        if left <= 0:
            raise LimitTimeout(f"limit {name} did not open within {self._wait:g} s")
        # Others look at the same gate: dice keep them apart.
        pause = min(FIRST_PAUSE * 1.5 ** min(attempt, 20), LONGEST_PAUSE) * random.uniform(0.5, 1)
        if answer.opens:
            pause = max((answer.opens - answer.now) / 1e6, FIRST_PAUSE)
        return min(pause, left)

    @property
    def _lease(self) -> int:
        return microseconds(self._client.settings.lease)

    @property
    def _gate(self) -> str:
        return f"{self._rule.name}:{'' if self._named == ALL else self._named}"

    def _hold(self) -> Call[HoldAnswer]:
        keys, name = self._client.keys, self._rule.name
        return hold_limit(keys, name, self._named, self._holder, self._lease, self._rule.fields)

    def _keep(self) -> Call[bool]:
        return keep_hold(self._client.keys, self._gate, self._holder, self._lease)

    def _release(self) -> Call[bool]:
        return release_hold(self._client.keys, self._rule.name, self._gate, self._holder)

    def _renew(self, over: threading.Event) -> None:
        while not over.wait(self._client.settings.lease / 3):
            try:
                kept = self._client.run(self._keep())
            except HeadraceError as error:
                log.warning("limit %s is held, and its lease could not be renewed: %s", self._rule.name, error)
                continue
            if not kept and not over.is_set():
                self._tell_lost()
                return

    async def _arenew(self) -> None:
        while True:
            await asyncio.sleep(self._client.settings.lease / 3)
            try:
                kept = await self._client.arun(self._keep())
            except HeadraceError as error:
                log.warning("limit %s is held, and its lease could not be renewed: %s", self._rule.name, error)
                continue
            if not kept:
                self._tell_lost()
                return

    def _tell_lost(self) -> None:
        self.lost = True
        log.warning("limit %s is not held any more: its lease was over before it was renewed", self._rule.name)
