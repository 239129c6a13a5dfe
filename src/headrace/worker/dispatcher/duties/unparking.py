"""Jobs that another worker parked, since it does not know their task, line up again where one does."""

from __future__ import annotations

from collections.abc import Container, Sequence

from headrace.protocol import consume
from headrace.protocol.keys import Keys
from headrace.worker.dispatcher.dispatcher_events import Step
from headrace.worker.dispatcher.duties.duty import BATCH


class Unparking:
    """Parked jobs of tasks that are known here. They line up when there is room for some, with a claim.

    Attributes:
        parked: tasks that are known here and may have parked jobs.
    """

    def __init__(self, keys: Keys, tasks: Container[str], queues: Sequence[str]) -> None:
        self.parked: set[str] = set()
        self._keys, self._tasks, self._queues = keys, tasks, queues
        self._under_way = 0

    def __bool__(self) -> bool:
        """Whether something is left to do, or is not answered."""
        return bool(self.parked or self._under_way)

    def step(self, task: str, room: int) -> Step:
        """The call for one task, for a claim in the same trip that has room for so many of its jobs."""
        limit = min(room, BATCH)
        # What is heard from now on may be newer than the answer.
        self.parked.discard(task)
        self._under_way += 1

        def moved(count: int) -> None:
            self._under_way -= 1
            if count == limit:
                self.parked.add(task)

        return consume.unpark(self._keys, task, limit, self._queues), moved

    def told(self, renewed: consume.Renewed, _: float) -> None:
        self.parked.update(task for task in renewed.parking if task in self._tasks)
