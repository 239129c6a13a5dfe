"""A client whose calls that are asked for at the same time travel in one round trip.

So a page asks at once for all that it shows, by the verbs that programs have. Owns no connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, TypeVar

from headrace.protocol.script import Call
from headrace.store.client import Client, JointReads, Steps, adriven

T = TypeVar("T")

# Seconds after which a store that does not answer counts as away, and trips a second at most for all tabs.
PATIENCE, RATE = 2.0, 20


class JointClient(Client):
    """An application's client, for reads on an event loop; all else is that client's own.

    Attributes:
        behind: that client.
    """

    def __init__(self, client: Client) -> None:
        self.behind = client
        self._reads = JointReads(self._aread, self._wait)
        self._departures: deque[float] = deque(maxlen=RATE)

    def __getattr__(self, name: str) -> Any:
        """Settings, keys and connections are those of the client now: a test kit leads it to another server."""
        return getattr(self.behind, name)

    async def arun(self, call: Call[T]) -> T:
        """Ask for one call.

        Raises:
            StoreUnavailable, ServerError: see :meth:`headrace.store.store.Store.run`.
            TimeoutError: the store did not answer for ``PATIENCE`` seconds.
        """
        return await self.aread(call)

    async def adrive(self, steps: Steps[T]) -> T:
        """Run a verb of several calls; each of its steps joins what is asked for at that time."""
        ask = self._reads.ask
        return await adriven(steps, lambda asked: ask(asked) if isinstance(asked, list) else self.arun(asked))

    def _wait(self, now: float) -> float:
        """Seconds until the next round trip may begin."""
        first = self._departures[0] + 1 if len(self._departures) == RATE else now
        self._departures.append(max(first, now))
        return first - now

    async def _aread(self, calls: list[Call[Any]]) -> list[Any]:
        async with asyncio.timeout(PATIENCE):
            return await super()._aread(calls)
