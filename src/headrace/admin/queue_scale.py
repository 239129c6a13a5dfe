"""What a queue has to do, and how many jobs at once that wants: for people and for autoscalers."""

from __future__ import annotations

import math
import time
from typing import Any, cast

import msgspec

from headrace.protocol.keys import Keys
from headrace.protocol.overviews import StoreLoad, store_load
from headrace.settings import Duration, seconds
from headrace.stats.labels import QUEUES
from headrace.stats.reading import Bucket
from headrace.stats.stats import Stats
from headrace.store.client import Client, Steps, single, together

# Seconds back for arrivals and mean run; and for the mean run where nothing ended within that time.
RECENT = 600
LONG = 86400
# Seconds ahead within which a scheduled job counts as due.
SOON = 60


class QueueLoad(msgspec.Struct, frozen=True):
    """What a queue has to do at one moment. It is what ``/scale`` and ``headrace queues load --json`` tell, too.

    Attributes:
        queue: its name.
        target: seconds within which all ready jobs are to start.
        ready: jobs that may start.
        running: jobs that run or were sent ahead to a runner; above 1,000 in all queues together an estimate.
        due: scheduled jobs that come due within a minute; likewise.
        paused: whether workers pass the queue over.
        arrivals: jobs that became ready, per second, of the last ten minutes; counted when their first start ended.
        run: seconds that a job runs, the mean of ten minutes, else of a day; 0: none ended within a day.
        drain: seconds until the ready jobs have started at the present pace; None: nothing runs.
        wanted: jobs that should run at once; see :func:`wanted`.
    """

    queue: str
    target: float
    ready: int
    running: int
    due: int
    paused: bool
    arrivals: float
    run: float
    drain: float | None
    wanted: int


def wanted(ready: int, running: int, due: int, paused: bool, arrivals: float, run: float, target: float) -> int:
    """Jobs that should run at once, so that all ready ones start within ``target`` seconds.

    What runs, and as many more as run the ready ones in that time; at least what keeps up with the arrivals. Never 0
    while anything is ready, runs or is due soon. A paused queue wants what runs. Where nothing has ended within a day,
    a job is taken to run for as long as the target.
    """
    if paused or not (ready or running or due):
        return running
    each = run or target
    return max(1, math.ceil(running + ready * each / target), math.ceil(arrivals * run))


def load_of(queue: str, target: float, seen: StoreLoad, recent: Bucket, day: Bucket, now: float) -> QueueLoad:
    """The load from what was read; ``now``: seconds since 1970."""
    ready, running, due = seen.ready[queue], seen.running.of(queue), seen.due.of(queue)
    ran = recent.histogram("run")
    run = (ran if ran.count else day.histogram("run")).mean
    arrivals = recent["enqueued"] / max(1.0, now - recent.start.timestamp())
    paused = queue in seen.paused
    drain = ready * (run or target) / running if running else (None if ready else 0.0)
    return QueueLoad(
        queue, target, ready, running, due, paused, arrivals, run, drain,
        wanted(ready, running, due, paused, arrivals, run, target),
    )  # fmt: skip


class LoadQuestion:
    """What must be read to tell the load of one queue."""

    def __init__(self, keys: Keys, stats: Stats, queue: str, target: Duration) -> None:
        """Raises OptionsError when the target is not a number or timedelta above 0."""
        self.target = seconds(target, "target", zero=False)
        self.now = time.time()
        self.client: Client = stats.client
        self._keys, self._queue = keys, queue
        levels, label = stats.layout.levels, f"{QUEUES}/{queue}"
        hours = [level for level in levels if 0 < level.cut.step <= 3600] or levels[:1]
        self._recent = stats.find(label, self.now - RECENT, every=levels[0].cut.name)
        self._day = stats.find(label, self.now - LONG, every=hours[-1].cut.name)

    def of_store(self) -> Steps[StoreLoad]:
        """What the store says, as steps. Cost: one round trip."""
        return single(store_load(self._keys, [self._queue], SOON * 1_000_000))

    def of_stats(self) -> Steps[Any]:
        """What the statistics say, as steps. Cost: one round trip."""
        return together([self._recent.learn_total(), self._day.learn_total()])

    def all_at_once(self) -> Steps[StoreLoad]:
        """Both, where they are on one server. Cost: one round trip."""
        both: list[Steps[Any]] = [self.of_store(), self._recent.learn_total(), self._day.learn_total()]
        seen, *_ = yield from together(both)
        return cast(StoreLoad, seen)

    def answer(self, seen: StoreLoad) -> QueueLoad:
        return load_of(self._queue, self.target, seen, self._recent.total(), self._day.total(), self.now)
