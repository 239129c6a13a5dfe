"""All jobs of an application: by id, counted, and in pages by state. Each verb has an asynchronous pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from headrace.client import Client, Steps
from headrace.errors import CorruptOptions, OptionsError
from headrace.handle import Job, check_id, not_found
from headrace.job import Record, State
from headrace.keys import check_name
from headrace.protocol import admin, produce
from headrace.script import Call
from headrace.signature import Unchecked
from headrace.task import Task

Order = Literal["asc", "desc"]

# Ids that one page looks at when it filters: what a page costs must not grow with the jobs that do not match.
LOOK = 1000
READ = 500


@dataclass(frozen=True, slots=True)
class JobPage:
    """A piece of the jobs of one state.

    Attributes:
        jobs: their records. Fewer than asked for when a filter passed over most of those looked at.
        count: how many jobs there are in this state, or in the one structure that the filter names.
        next: what to give as ``after`` for the next page; None when there is no more.
    """

    jobs: list[Record]
    count: int
    next: str | None

    def __iter__(self) -> Iterator[Record]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)


@dataclass(frozen=True, slots=True)
class _Query:
    state: State
    queue: str | None
    task: str | None
    limit: int
    after: tuple[str, int, str] | None
    desc: bool
    since: int | None
    until: int | None

    @property
    def filters(self) -> bool:
        """Whether jobs must be looked at that the page may not want."""
        by_queue = self.queue is not None and self.state is not State.READY
        return by_queue or (self.task is not None and self.state is not State.PARKED)

    def wants(self, record: Record) -> bool:
        return self.queue in (None, record.queue) and self.task in (None, record.task)


class Jobs:
    """``app.jobs``."""

    def __init__(self, client: Client, tasks: Mapping[str, Task[..., Any, Any]]) -> None:
        self._client = client
        self._tasks = tasks

    def get(self, id: str) -> Job[Any]:
        """A handle on the stored job of this id; its result has the type of its task, if that is defined here.

        Raises:
            JobNotFound: nothing is stored under this id, or it is not the id of a job.

        Cost: one round trip.
        """
        return self._found(id, self._client.run(produce.read(self._client.keys, [check_id(id)])))

    async def aget(self, id: str) -> Job[Any]:
        """See :meth:`get`."""
        return self._found(id, await self._client.arun(produce.read(self._client.keys, [check_id(id)])))

    def handle(self, record: Record) -> Job[Any]:
        """A handle on the job of a record that was read. Cost: none."""
        task = self._tasks.get(record.task)
        if task is None:
            return Job(self._client, record.id, record.task, Unchecked(record.task).unpack_result, None)
        keep_failed = None
        with suppress(CorruptOptions):
            keep_failed = task.plan(record.options).keep_failed / 1_000_000
        return Job(self._client, record.id, record.task, task.signature.unpack_result, keep_failed)

    def page(
        self,
        state: State | str,
        *,
        queue: str | None = None,
        task: str | None = None,
        limit: int = 100,
        after: str | None = None,
        order: Order = "desc",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> JobPage:
        """Jobs of one state, a page at a time.

        Finished ones are in the order of their ends, running ones of their starts, others of their due times.
        Ready jobs of several queues come queue by queue, running ones worker by worker, parked ones task by task.

        Args:
            queue, task: only theirs; a page looks at 1,000 jobs at most, so it may hold fewer than ``limit``.
            limit: 1 to 1000.
            after: ``next`` of the page before.
            order: ``desc``: the newest first.
            since, until: inclusive, with a time zone.

        Raises:
            OptionsError: an argument is out of range.

        Cost: two round trips, one more to learn which queues or workers there are, and two for each further one of
        them or 500 jobs that are looked at.
        """
        return self._client.drive(_page(self._client, _query(state, queue, task, limit, after, order, since, until)))

    async def apage(
        self,
        state: State | str,
        *,
        queue: str | None = None,
        task: str | None = None,
        limit: int = 100,
        after: str | None = None,
        order: Order = "desc",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> JobPage:
        """See :meth:`page`."""
        query = _query(state, queue, task, limit, after, order, since, until)
        return await self._client.adrive(_page(self._client, query))

    def count(self, state: State | str) -> int:
        """How many jobs are in a state now. Cost: one round trip, whatever the number of jobs."""
        name = _state(state)
        return self._client.run(admin.overview(self._client.keys)).states.get(name, 0)

    async def acount(self, state: State | str) -> int:
        """See :meth:`count`."""
        name = _state(state)
        return (await self._client.arun(admin.overview(self._client.keys))).states.get(name, 0)

    def _found(self, id: str, records: list[Record | None]) -> Job[Any]:
        if records[0] is None:
            raise not_found(id)
        return self.handle(records[0])


def _state(state: State | str) -> State:
    try:
        return State(state)
    except ValueError:
        raise OptionsError(f"there is no state {state!r}: the states are {', '.join(State)}") from None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _moment(name: str, value: datetime | None) -> int | None:
    if value is None:
        return None
    if value.utcoffset() is None:
        raise OptionsError(f"{name}={value.isoformat()} has no time zone, so nobody knows when that is: give one")
    return (value - _EPOCH) // timedelta(microseconds=1)


def _query(
    state: State | str,
    queue: str | None,
    task: str | None,
    limit: int,
    after: str | None,
    order: str,
    since: datetime | None,
    until: datetime | None,
) -> _Query:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= 1000:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(f"limit must be a whole number from 1 to 1000, not {limit!r}")
    if order not in ("asc", "desc"):
        raise OptionsError(f"order must be asc or desc, not {order!r}")
    cursor: tuple[str, int, str] | None = None
    if after is not None:
        try:
            score, id, index = after.split("~", 2)
            cursor = index, int(score), id
        except ValueError:
            raise OptionsError(f"after={after!r} is not the `next` of a page") from None
    for kind, name in (("queue", queue), ("task", task)):
        if name is not None:
            check_name(kind, name)
    return _Query(
        _state(state), queue, task, limit, cursor, order == "desc", _moment("since", since), _moment("until", until)
    )


def _indexes(client: Client, query: _Query) -> Steps[tuple[list[str], int | None]]:
    """The structures that hold the jobs asked for, in order; and how many jobs, where that had to be asked anyway."""
    if query.state in (State.BLOCKED, State.STOPPED):
        return [], 0
    if query.state is State.READY and query.queue is not None:
        return [f"ready:{query.queue}"], None
    if query.state is State.PARKED and query.task is not None:
        return [f"parked:{query.task}"], None
    if query.state not in (State.READY, State.PARKED, State.RUNNING):
        return [query.state], None
    seen: admin.Overview = yield admin.overview(client.keys)
    names = {
        State.READY: [f"ready:{queue.name}" for queue in seen.queues],
        State.PARKED: [f"parked:{task}" for task in sorted(seen.parked)],
        State.RUNNING: [f"claims:{worker.owner}" for worker in sorted(seen.workers, key=lambda worker: worker.owner)],
    }
    return names[query.state], seen.states.get(query.state, 0)


def _page(client: Client, query: _Query) -> Steps[JobPage]:
    names, count = yield from _indexes(client, query)
    found: list[Record] = []
    looked = 0
    for name in names:
        if query.after is not None and name < query.after[0]:
            continue
        position: tuple[int, str] | None = None
        if query.after is not None and name == query.after[0]:
            position = query.after[1:]
        more = True
        while more:
            want = READ if query.filters else query.limit - len(found)
            want = min(want, READ, LOOK - looked)
            piece: admin.Page = yield _piece(client, query, name, position, want)
            records: list[Record | None] = yield produce.read(client.keys, [id for id, _ in piece.rows])
            count = piece.count if count is None else count
            more = len(piece.rows) == want
            for (id, score), record in zip(piece.rows, records, strict=True):
                position = score, id
                looked += 1
                if record is not None and query.wants(record):
                    found.append(record)
                if len(found) == query.limit or looked == LOOK:
                    return JobPage(found, count, f"{score}~{id}~{name}")
    return JobPage(found, count or 0, None)


def _piece(client: Client, query: _Query, name: str, after: tuple[int, str] | None, limit: int) -> Call[admin.Page]:
    return admin.page(
        client.keys, name, limit=limit, after=after, desc=query.desc, since=query.since, until=query.until
    )
