"""What queues have to do: one read of what is ready, runs and comes due soon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.model.job import moment
from headrace.protocol.keys import Keys
from headrace.protocol.replies import text_of
from headrace.protocol.script import Call, load

# Running jobs, and scheduled ones, whose queue one read looks up: each costs the server some two microseconds.
LOOK = 1000


class CountedQueues(msgspec.Struct, frozen=True):
    """Jobs by queue.

    Attributes:
        total: of all queues.
        looked: how many of them were looked at.
        counts: by queue, of those.
    """

    total: int
    looked: int
    counts: Mapping[str, int]

    def of(self, queue: str) -> int:
        """How many are of a queue.

        Exact where all were looked at. Else their share of those that were, and 1 at least: 0 is never a guess.
        """
        found = self.counts.get(queue, 0)
        return found if self.looked >= self.total else max(1, found * self.total // max(1, self.looked))


class StoreLoad(msgspec.Struct, frozen=True):
    """What there is to do at one moment. Times in microseconds of server time.

    Attributes:
        now: server time.
        ready: ready jobs of each queue that was named; paused: those of them that are paused.
        running: jobs that run or were sent ahead to a runner.
        due: scheduled jobs that come due within the time that was asked for.
        first_tick: when the next tick of a schedule is due; 0: there is none.
        memory, max_memory: bytes that the server uses and may use; 0: unknown, and without a limit.
    """

    now: int
    ready: Mapping[str, int]
    paused: frozenset[str]
    running: CountedQueues
    due: CountedQueues
    first_tick: int
    memory: int
    max_memory: int


def _counted(reply: Any) -> CountedQueues:
    total, looked, rows = reply
    names = [text_of(rows[n]) for n in range(0, len(rows), 2)]
    return CountedQueues(total, looked, dict(zip(names, rows[1::2], strict=True)))


def store_load(keys: Keys, queues: Sequence[str] = (), soon: int = 0, look: int = LOOK) -> Call[StoreLoad]:
    """What queues have to do.

    Args:
        queues: those whose ready jobs are counted, at most 1,000; what runs and comes due is told of every queue.
        soon: microseconds ahead within which a scheduled job counts as due.
        look: most running jobs, and most scheduled ones, whose queue is looked up; see :class:`CountedQueues`.

    Cost: one round trip, O(workers + queues + look), whatever the number of jobs.
    """

    def parse(reply: Any) -> StoreLoad:
        at, waiting, running, due, first, memory, most = reply
        ready = {queue: size for queue, (size, _) in zip(queues, waiting, strict=True)}
        held = frozenset(queue for queue, (_, paused) in zip(queues, waiting, strict=True) if paused)
        return StoreLoad(at, ready, held, _counted(running), _counted(due), moment(first), memory, most)

    return load("load").bind(keys, parse, names=list(queues), soon=soon, look=look)
