"""The queues of an application: verbs on them, how much work each has, and what an autoscaler asks over HTTP."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from headrace.errors import OptionsError
from headrace.model.activity import pause_note
from headrace.model.ids import check_name
from headrace.protocol import index_pages, operations, overviews
from headrace.protocol.keys import Keys
from headrace.protocol.overviews import StoreLoad, store_load
from headrace.protocol.script import Call
from headrace.settings import Duration, microseconds, seconds
from headrace.stats.resolutions import QUEUES
from headrace.stats.stats import Stats
from headrace.store.client import Client, Steps, single, together, twin, verb

if TYPE_CHECKING:
    from headrace.stats.prometheus import Page

# Seconds back for arrivals and mean run; and for the mean run where nothing ended within that time.
RECENT = 600
LONG = 86400
SOON = 60  # seconds ahead within which a scheduled job counts as due


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


class LoadQuestion:
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
        return single(store_load(self._keys, [self._queue], SOON * 1_000_000))

    def of_stats(self) -> Steps[Any]:
        return together([self._recent.learn_total(), self._day.learn_total()])

    def all_at_once(self) -> Steps[StoreLoad]:
        both: list[Steps[Any]] = [self.of_store(), self._recent.learn_total(), self._day.learn_total()]
        seen, *_ = yield from together(both)
        return cast(StoreLoad, seen)

    def answer(self, seen: StoreLoad) -> QueueLoad:
        recent, queue, target = self._recent.total(), self._queue, self.target
        ready, running, due = seen.ready[queue], seen.running.of(queue), seen.due.of(queue)
        ran = recent.histogram("run")
        run = (ran if ran.count else self._day.total().histogram("run")).mean
        arrivals = recent["enqueued"] / max(1.0, self.now - recent.start.timestamp())
        paused = queue in seen.paused
        drain = ready * (run or target) / running if running else (None if ready else 0.0)
        jobs = wanted(ready, running, due, paused, arrivals, run, target)
        return QueueLoad(queue, target, ready, running, due, paused, arrivals, run, drain, jobs)


PURGE = 1000  # jobs that one round trip of a purge deletes: others must be served in between


class Queue:
    """One named line of ready jobs.

    Attributes:
        name: of the queue.
    """

    def __init__(self, client: Client, stats: Callable[[], Stats], name: str) -> None:
        self.name = check_name("queue", name)
        self._client = client
        self._stats = stats

    @property
    def size(self) -> int:
        """How many jobs are ready in it now. Cost: one round trip."""
        return self._client.run(self._count()).count

    async def asize(self) -> int:
        """See :attr:`size`."""
        return (await self._client.arun(self._count())).count

    @property
    def paused(self) -> bool:
        """Whether workers pass it over. Cost: one round trip."""
        return self.name in self._client.run(operations.paused(self._client.keys))

    async def apaused(self) -> bool:
        """See :attr:`paused`."""
        return self.name in await self._client.arun(operations.paused(self._client.keys))

    @verb
    def pause(self, duration: Duration | None = None, note: str = "") -> Call[bool]:
        """Let no more jobs of the queue start; those that run go on. False when it was paused already. Cost: one round
        trip. Raises OptionsError: ``duration`` is not a number or timedelta above 0.

        Args:
            duration: after which workers resume it, counted from now by the server's clock. None: until ``resume``.
            note: why, for people: ``job.why()`` of its jobs, lists and the dashboard show it; 500 characters are kept.
                Both replace what an earlier pause said.
        """
        # Not even the shortest one may come out as 0, which has no end.
        length = 0 if duration is None else max(1, microseconds(seconds(duration, "duration", zero=False)))
        return operations.pause(self._client.keys, self.name, length, note=pause_note(note))

    @verb
    def resume(self) -> Call[bool]:
        """Let jobs of the queue start again. False when it was not paused. Cost: one round trip."""
        return operations.resume(self._client.keys, self.name)

    def load(self, target: Duration = 30) -> QueueLoad:
        """What the queue has to do, and how many jobs at once that wants: for people and for autoscalers. Cost: one
        round trip, whatever the number of jobs; two where statistics have a server of their own. Raises OptionsError:
        ``target`` is not a number or timedelta above 0.

        Args:
            target: time within which all ready jobs are to start.
        """
        ask = LoadQuestion(self._client.keys, self._stats(), self.name, target)
        if ask.client is self._client:
            return ask.answer(self._client.drive(ask.all_at_once()))
        ask.client.drive(ask.of_stats())
        return ask.answer(self._client.drive(ask.of_store()))

    async def aload(self, target: Duration = 30) -> QueueLoad:
        """See :meth:`load`."""
        ask = LoadQuestion(self._client.keys, self._stats(), self.name, target)
        if ask.client is self._client:
            return ask.answer(await self._client.adrive(ask.all_at_once()))
        await ask.client.adrive(ask.of_stats())
        return ask.answer(await self._client.adrive(ask.of_store()))

    @verb
    def purge(self) -> Steps[int]:
        """Delete the jobs that are ready now; who waits for their results hears that they were cancelled.

        Scheduled and running jobs stay, and so do those that come during the purge: workflow nodes that it makes ready,
        too. Ordered jobs that wait in this queue behind a deleted one are deleted with it. Returns how many were
        deleted. Cost: one round trip per 1,000 jobs.
        """
        return sum((yield from together([self._purge_shard(keys) for keys in self._client.shards])))

    def _count(self) -> Call[index_pages.IndexPage]:
        return index_pages.page(self._client.keys, f"ready:{self.name}", index_pages.Slice(1))

    def _purge_shard(self, keys: Keys) -> Steps[int]:
        removed: int
        left: int
        removed, left = yield operations.purge(keys, self.name, PURGE)
        # Bounded by what was there at the start: jobs that come faster than they are deleted must not hold it for ever.
        goal = removed + left
        while left and removed < goal:
            more, left = yield operations.purge(keys, self.name, min(PURGE, goal - removed))
            if not more:
                # Jobs are left by the count alone, which is wrong.
                break
            removed += more
        return removed

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    apause = twin(pause)
    aresume = twin(resume)
    apurge = twin(purge)


class Queues:
    """``app.queues``: by name, or all that hold work, are paused or are served, and up to 500 that held work once."""

    def __init__(self, client: Client, stats: Callable[[], Stats]) -> None:
        self._client = client
        self._stats = stats

    def __getitem__(self, name: str) -> Queue:
        """The queue of this name, whether it holds work or not. Cost: none. Raises OptionsError: nothing can have this
        name.
        """
        return Queue(self._client, self._stats, name)

    def __iter__(self) -> Iterator[Queue]:
        """Cost: one round trip."""
        for queue in self._client.run(overviews.overview(self._client.keys, details=False)).queues:
            yield Queue(self._client, self._stats, queue.name)

    async def __aiter__(self) -> AsyncIterator[Queue]:
        """Cost: one round trip."""
        for queue in (await self._client.arun(overviews.overview(self._client.keys, details=False))).queues:
            yield Queue(self._client, self._stats, queue.name)


def scale_page(queues: Queues) -> Page:
    """``/scale?queue=mail&target=30``: a load as JSON; 400: an unusable name or target, 503: the store is away."""
    from headrace.stats.prometheus import Answer  # it brings the standard library's server

    def page(asked: Mapping[str, str]) -> Answer:
        if not asked.get("queue"):
            raise OptionsError("say which queue: /scale?queue=mail&target=30")
        try:
            target = float(asked.get("target", "30"))
        except ValueError:
            raise OptionsError(f"target={asked['target']!r} is not a number of seconds") from None
        found = queues[asked["queue"]].load(target)
        return Answer(200, msgspec.json.encode(found).decode() + "\n", "application/json")

    return page
