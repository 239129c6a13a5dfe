"""What is shown live: one read of the store that all tabs share, so that fifty of them cost what one does.

A frame holds counts, queues and workers, never jobs: its cost does not grow with what is stored.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from headrace.model.limit_rules import LimitState
from headrace.model.workflow import WorkflowState
from headrace.protocol import graph, overviews
from headrace.protocol.limit_verbs import read_limits
from headrace.protocol.overviews import Overview, QueueFacts, WorkerFacts
from headrace.store.client import Client, Steps

T = TypeVar("T")

# Seconds that one read serves all who ask.
AGE = 2.0
# Limits that a frame tells of.
LIMITS = 50

_FLOWS = (WorkflowState.RUNNING, WorkflowState.FAILED)


class LiveFrame(msgspec.Struct, frozen=True):
    """How much was where at one moment.

    Attributes:
        overview: counts, queues and workers, without what workers say of their runners.
        flows: how many workflows there are, by the states ``running`` and ``failed``.
        limits: the first ``LIMITS`` by name.
    """

    overview: Overview
    flows: Mapping[str, int]
    limits: Sequence[LimitState] = ()

    @property
    def now(self) -> int:
        """Server time of the read, microseconds."""
        return self.overview.now

    @property
    def live(self) -> list[WorkerFacts]:
        """Workers whose lease holds, the busiest first."""
        return sorted(self.overview.live, key=lambda worker: (-worker.running, worker.owner))

    @property
    def slots(self) -> int:
        """Jobs that all live workers run at once."""
        return sum(worker.slots for worker in self.overview.live)

    @property
    def kinds(self) -> dict[str, tuple[int, int]]:
        """Of each kind of runners, slots of live workers that have a job, and all of them."""
        busy, sizes = Counter[str](), Counter[str]()
        for worker in self.overview.live:
            busy.update(worker.busy)
            sizes.update(worker.sizes)
        return {kind: (busy[kind], size) for kind, size in sizes.items()}

    @property
    def queues(self) -> list[QueueFacts]:
        """Queues that hold work, are paused or are served, by name."""
        return self.overview.queues

    def waited(self, queue: QueueFacts) -> float:
        """Seconds that the next job of a queue has waited; 0 for an empty one."""
        return queue.waited(self.now) or 0.0


def _frame(client: Client, *, details: bool) -> Steps[LiveFrame]:
    keys = client.keys
    calls: list[Any] = [overviews.overview(keys, details=details), read_limits(keys, limit=LIMITS)]
    calls += [graph.flow_count(keys, "", state) for state in _FLOWS]
    seen, limits, *counts = yield calls
    return LiveFrame(seen, {str(state): number for state, number in zip(_FLOWS, counts, strict=True)}, limits.rows)


async def read_frame(client: Client, *, details: bool = False) -> LiveFrame:
    """Read one. Cost: one round trip, whatever the number of jobs."""
    return await client.adrive(_frame(client, details=details))


class Shared(Generic[T]):
    """A reading that all who ask within its age share; while it is under way the others wait for it.

    Attributes:
        last: what was read last; None before the first.
    """

    def __init__(self, read: Callable[[], Awaitable[T]], age: float = AGE) -> None:
        self.last: T | None = None
        self._read = read
        self._age = age
        self._at = 0.0
        self._lock = asyncio.Lock()

    async def get(self, *, fresh: bool = False, age: float | None = None) -> T:
        """The reading.

        Args:
            fresh: read now, as after a verb whose effect is to be seen.
            age: seconds that it may be old; None: as usual.
        """
        async with self._lock:
            if self.last is None or fresh or time.monotonic() - self._at > (self._age if age is None else age):
                self.last = await self._read()
                self._at = time.monotonic()
            return self.last
