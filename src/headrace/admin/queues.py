"""The queues of an application, for those who operate it. Each verb has an asynchronous pair.

What an autoscaler asks over HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import OptionsError
from headrace.model.activity import pause_note
from headrace.model.ids import check_name
from headrace.protocol import index_pages, operations, overviews
from headrace.protocol.script import Call
from headrace.settings import Duration, microseconds, seconds
from headrace.store.client import Client, Steps

if TYPE_CHECKING:
    from headrace.admin.queue_scale import LoadQuestion, QueueLoad
    from headrace.stats.prometheus import Page
    from headrace.stats.stats import Stats

# Jobs that one round trip of a purge deletes: others must be served in between.
PURGE = 1000


class Queue:
    """One named line of ready jobs.

    Attributes:
        name: of the queue.
    """

    def __init__(self, client: Client, stats: Callable[[], Stats], name: str) -> None:
        """Use ``app.queues[name]``."""
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

    def pause(self, duration: Duration | None = None, note: str = "") -> bool:
        """Let no more jobs of the queue start; those that run go on. False when it was paused already.

        Args:
            duration: after which workers resume it, counted from now by the server's clock. None: until ``resume``.
            note: why, for people: ``job.why()`` of its jobs, lists and the dashboard show it; 500 characters are kept.
                Both replace what an earlier pause said.

        Raises:
            OptionsError: ``duration`` is not a number or timedelta above 0.

        Cost: one round trip.
        """
        return self._client.run(self._pause(duration, note))

    async def apause(self, duration: Duration | None = None, note: str = "") -> bool:
        """See :meth:`pause`."""
        return await self._client.arun(self._pause(duration, note))

    def resume(self) -> bool:
        """Let jobs of the queue start again. False when it was not paused.

        Cost: one round trip.
        """
        return self._client.run(operations.resume(self._client.keys, self.name))

    async def aresume(self) -> bool:
        """See :meth:`resume`."""
        return await self._client.arun(operations.resume(self._client.keys, self.name))

    def load(self, target: Duration = 30) -> QueueLoad:
        """What the queue has to do, and how many jobs at once that wants: for people and for autoscalers.

        Args:
            target: time within which all ready jobs are to start.

        Raises:
            OptionsError: ``target`` is not a number or timedelta above 0.

        Cost: one round trip, whatever the number of jobs; two where statistics have a server of their own.
        """
        ask = self._question(target)
        if ask.client is self._client:
            return ask.answer(self._client.drive(ask.all_at_once()))
        ask.client.drive(ask.of_stats())
        return ask.answer(self._client.drive(ask.of_store()))

    async def aload(self, target: Duration = 30) -> QueueLoad:
        """See :meth:`load`."""
        ask = self._question(target)
        if ask.client is self._client:
            return ask.answer(await self._client.adrive(ask.all_at_once()))
        await ask.client.adrive(ask.of_stats())
        return ask.answer(await self._client.adrive(ask.of_store()))

    def _question(self, target: Duration) -> LoadQuestion:
        # Programs that only enqueue import no statistics.
        from headrace.admin.queue_scale import LoadQuestion

        return LoadQuestion(self._client.keys, self._stats(), self.name, target)

    def purge(self) -> int:
        """Delete the jobs that are ready now; who waits for their results hears that they were cancelled.

        Scheduled and running jobs stay, and so do those that come during the purge: workflow nodes that it makes ready,
        too. Ordered jobs that wait in this queue behind a deleted one are deleted with it.

        Returns:
            how many were deleted.

        Cost: one round trip per 1,000 jobs.
        """
        return self._client.drive(self._purge())

    async def apurge(self) -> int:
        """See :meth:`purge`."""
        return await self._client.adrive(self._purge())

    def _pause(self, duration: Duration | None, note: str) -> Call[bool]:
        # Not even the shortest one may come out as 0, which has no end.
        length = 0 if duration is None else max(1, microseconds(seconds(duration, "duration", zero=False)))
        return operations.pause(self._client.keys, self.name, length, note=pause_note(note))

    def _count(self) -> Call[index_pages.IndexPage]:
        return index_pages.page(self._client.keys, f"ready:{self.name}", limit=1)

    def _purge(self) -> Steps[int]:
        removed: int
        left: int
        removed, left = yield operations.purge(self._client.keys, self.name, PURGE)
        # Bounded by what was there at the start: jobs that come faster than they are deleted must not hold it for ever.
        goal = removed + left
        while left and removed < goal:
            more, left = yield operations.purge(self._client.keys, self.name, min(PURGE, goal - removed))
            if not more:
                # Jobs are left by the count alone, which is wrong.
                break
            removed += more
        return removed

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"


class Queues:
    """``app.queues``: by name, or all that hold work, are paused or are served, and up to 500 that held work once."""

    def __init__(self, client: Client, stats: Callable[[], Stats]) -> None:
        self._client = client
        self._stats = stats

    def __getitem__(self, name: str) -> Queue:
        """The queue of this name, whether it holds work or not. Cost: none.

        Raises:
            OptionsError: nothing can have this name.
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
    """``/scale?queue=mail&target=30``: JSON of :class:`headrace.admin.queue_scale.QueueLoad`. An unusable name or
    target is answered with 400, a store that is away with 503.
    """
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
