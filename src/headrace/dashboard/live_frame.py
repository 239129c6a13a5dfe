"""Live figures of the dashboard: one read of the store that all tabs share, so that fifty tabs cost as much as one.

1. :class:`LiveFrame`: counts, queues and workers, never jobs, so its cost does not grow with the number of jobs.
2. :class:`JointClient`: a client whose simultaneous calls travel in one round trip, so that a page asks at once for
   all that it shows, by the verbs that programs have. Owns no connection.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from headrace.model.limit_rules import LimitState
from headrace.protocol import overviews
from headrace.protocol.index_pages import Slice
from headrace.protocol.index_pages import page as index_page
from headrace.protocol.keys import Keys
from headrace.protocol.limit_verbs import read_limits
from headrace.protocol.overviews import Overview, QueueFacts, WorkerFacts
from headrace.protocol.script import Call
from headrace.store.client import Client, JointReads, Steps, adriven

T = TypeVar("T")

AGE = 2.0  # seconds that one read serves all who ask
LIMITS = 50  # limits that a frame tells of


class LiveFrame(msgspec.Struct, frozen=True):
    """How much was where at one moment.

    Attributes:
        overview: counts, queues and workers, without what workers say of their runners.
        flows: how many workflows there are, by the states ``running`` and ``failed``.
        limits: the first ``LIMITS`` by name.
        failed_flow: the workflow that was created last of those that failed; empty: there is none.
    """

    overview: Overview
    flows: Mapping[str, int]
    limits: Sequence[LimitState] = ()
    failed_flow: str = ""

    @property
    def now(self) -> int:
        """Server time of the read, microseconds."""
        return self.overview.now

    @property
    def live(self) -> list[WorkerFacts]:
        return sorted(self.overview.live, key=lambda worker: (-worker.running, worker.owner))

    @property
    def slots(self) -> int:
        return sum(worker.slots for worker in self.overview.live)

    @property
    def kinds(self) -> dict[str, tuple[int, int]]:
        busy, sizes = Counter[str](), Counter[str]()
        for worker in self.overview.live:
            busy.update(worker.busy)
            sizes.update(worker.sizes)
        return {kind: (busy[kind], size) for kind, size in sizes.items()}

    @property
    def queues(self) -> list[QueueFacts]:
        return self.overview.queues

    def waited(self, queue: QueueFacts) -> float:
        """Seconds that the next job of a queue has waited; 0 for an empty one."""
        return queue.waited(self.now) or 0.0


def read_frame(keys: Keys, *, details: bool = False) -> Steps[LiveFrame]:
    calls: list[Any] = [overviews.overview(keys, details=details), read_limits(keys, limit=LIMITS)]
    calls += [index_page(keys, f"flows:|{state}", Slice(1)) for state in ("running", "failed")]
    seen, limits, running, failed = yield calls
    flows = {"running": running.count, "failed": failed.count}
    return LiveFrame(seen, flows, limits.rows, failed.rows[0][0] if failed.rows else "")


class Shared(Generic[T]):
    """A reading that all who ask within its age share, and wait for while it is under way. ``last``: if any."""

    def __init__(self, read: Callable[[], Awaitable[T]], age: float = AGE) -> None:
        self.last: T | None = None
        self._read = read
        self._age = age
        self._at = 0.0
        self._lock = asyncio.Lock()

    async def get(self, *, fresh: bool = False, age: float | None = None) -> T:
        """The reading. ``fresh``: read now, as after a verb whose effect is to be seen. ``age``: at most, seconds."""
        async with self._lock:
            if self.last is None or fresh or time.monotonic() - self._at > (self._age if age is None else age):
                self.last = await self._read()
                self._at = time.monotonic()
            return self.last


# Seconds after which a store that does not answer counts as away, and trips a second at most for all tabs: those of a
# search or of a bulk operation's count, and a few more.
PATIENCE = 2.0
RATE = 20


class JointClient(Client):
    """An application's client, for reads on an event loop; all else is that of the client ``behind``."""

    def __init__(self, client: Client) -> None:
        self.behind = client
        self._reads = JointReads(self._aread, self._wait)
        self._departures: deque[float] = deque(maxlen=RATE)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)

    async def arun(self, call: Call[T]) -> T:
        """Ask for one call. Raises as a store's :meth:`run`, and TimeoutError after ``PATIENCE`` seconds."""
        return await self.aread(call)

    async def adrive(self, steps: Steps[T]) -> T:
        ask = self._reads.ask
        return await adriven(steps, lambda asked: ask(asked) if isinstance(asked, list) else self.arun(asked))

    def _wait(self, now: float) -> float:
        first = self._departures[0] + 1 if len(self._departures) == RATE else now
        self._departures.append(max(first, now))
        return first - now

    async def _aread(self, calls: list[Call[Any]]) -> list[Any]:
        async with asyncio.timeout(PATIENCE):
            return await super()._aread(calls)
