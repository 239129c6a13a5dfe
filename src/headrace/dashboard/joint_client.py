"""A client whose calls that are asked for at the same time travel in one round trip.

So a page asks at once for all that it shows, by the verbs that programs have. Owns no connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, TypeVar, cast

from headrace.errors import ServerError, StoreUnavailable
from headrace.protocol.script import Call
from headrace.store.client import Client, Steps, adriven

T = TypeVar("T")

# Seconds after which a store that does not answer counts as away, and trips a second at most for all tabs.
PATIENCE, RATE = 4.0, 20

Asked = tuple[list[Call[Any]], asyncio.Future[list[Any]]]


class JointClient(Client):
    """An application's client, for reads on an event loop; all else is that client's own.

    Attributes:
        behind: that client.
    """

    def __init__(self, client: Client) -> None:
        self.behind = client
        self._asked: list[Asked] = []
        self._trips: set[asyncio.Task[None]] = set()
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
        (found,) = await self._ask([call])
        return cast(T, found)

    async def adrive(self, steps: Steps[T]) -> T:
        """Run a verb of several calls; each of its steps joins what is asked for at that time."""
        return await adriven(steps, lambda asked: self._ask(asked) if isinstance(asked, list) else self.arun(asked))

    async def _ask(self, calls: list[Call[Any]]) -> list[Any]:
        loop = asyncio.get_running_loop()
        if not self._asked:
            first = self._departures[0] if len(self._departures) == RATE else 0.0
            # At once is behind all that the loop has to do by now: what a page asks for together is asked for by then.
            loop.call_at(first + 1, self._depart) if loop.time() < first + 1 else loop.call_soon(self._depart)
        answer: asyncio.Future[list[Any]] = loop.create_future()
        self._asked.append((calls, answer))
        return await answer

    def _depart(self) -> None:
        self._departures.append(asyncio.get_running_loop().time())
        asked, self._asked = self._asked, []
        trip = asyncio.ensure_future(self._travel(asked))
        self._trips.add(trip)
        trip.add_done_callback(self._trips.discard)

    async def _travel(self, asked: list[Asked]) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                store = await self.ready()
                found = iter(await store.run_all([call for calls, _ in asked for call in calls]))
        except Exception as error:  # noqa: BLE001 - it is handed to those who asked
            if len(asked) > 1 and isinstance(error, ServerError) and not isinstance(error, StoreUnavailable):
                # What the server refuses one page must not fail another.
                await asyncio.gather(*(self._travel([one]) for one in asked))
                return
            for _, answer in asked:
                if not answer.done():
                    answer.set_exception(error)
            return
        for calls, answer in asked:
            replies = [next(found) for _ in calls]
            if not answer.done():
                answer.set_result(replies)
