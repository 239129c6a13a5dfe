"""All jobs of an application: by id, counted, and in pages by state. Each verb has an asynchronous pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headrace.admin.pagination import Order, check_limit, cursor_of, descending, position, window
from headrace.errors import CorruptOptions, OptionsError
from headrace.model.ids import check_name
from headrace.model.job import HEAD_START, MOST_PRIORITY, State
from headrace.model.job_record import Finder, PlainReader, Record, ValueReader
from headrace.protocol import operations, produce
from headrace.protocol.operations import WALK
from headrace.store.client import Client, Steps
from headrace.tasks.job_handle import Job, check_id, not_found
from headrace.tasks.task import Task

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
    key: str | None
    limit: int
    after: tuple[str, int, str] | None
    desc: bool
    since: int | None
    until: int | None

    @property
    def filters(self) -> bool:
        """Whether jobs must be looked at that the page may not want."""
        by_queue = self.queue is not None and self.state is not State.READY
        by_key = self.key is not None and self.state is not State.BLOCKED
        return by_queue or by_key or (self.task is not None and self.state is not State.PARKED) or self._by_due

    @property
    def scores(self) -> tuple[int | None, int | None]:
        """Between which scores to look. Those of ready jobs are not their times: a priority moves them."""
        most = MOST_PRIORITY * HEAD_START if self.state is State.READY else 0
        return None if self.since is None else self.since - most, None if self.until is None else self.until + most

    @property
    def _by_due(self) -> bool:
        return self.state is State.READY and (self.since is not None or self.until is not None)

    def wants(self, record: Record) -> bool:
        if self._by_due and not (self.since or 0) <= record.due_us <= (self.until or record.due_us):
            return False
        return (
            self.queue in (None, record.queue) and self.task in (None, record.task) and self.key in (None, record.key)
        )


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
        return Job(self._client, record.id, record.task, *self._find(record))

    def _find(self, record: Record) -> tuple[ValueReader, float | None]:
        task = self._tasks.get(record.task)
        if task is None:
            return PlainReader(record.task), None
        failure_ttl = None
        with suppress(CorruptOptions):
            failure_ttl = task.plan(record.options).failure_ttl / 1_000_000
        return task.signature, failure_ttl

    def handle_of(self, id: str) -> Job[Any]:
        """A handle on the job of this id, whether one is stored or not; ``app.job(id)``.

        Its first ``result``, ``cancel`` or ``refresh`` reads which task it is of: the first two take one trip more.

        Raises:
            JobNotFound: it is not the id of a job.

        Cost: none.
        """
        if callable(id):
            raise OptionsError("app.job(id) is a handle on a stored job: @app.task makes a task")
        return Job(self._client, check_id(id), "", None, None, self._find)

    def reader(self, task: str) -> ValueReader:
        """What makes values of the arguments and results of this task; plain ones where it is not defined here."""
        known = self._tasks.get(task)
        return PlainReader(task) if known is None else known.signature

    def page(
        self,
        state: State | str,
        *,
        queue: str | None = None,
        task: str | None = None,
        key: str | None = None,
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
            queue, task, key: only theirs; a page looks at 1,000 jobs at most, so it may hold fewer than ``limit``.
                Blocked jobs, ordered ones that wait for their turn, are listed by key only.
            limit: 1 to 1000.
            after: ``next`` of the page before.
            order: ``desc``: the newest first; of ready jobs, those that start last.
            since, until: inclusive, with a time zone. Of ready jobs a page then looks at 1,000 at most, too.

        Raises:
            OptionsError: an argument is out of range.

        Cost: two round trips, one more to learn which queues or workers there are, and two for each further 50 of
        these that hold jobs, or 500 jobs that are looked at.
        """
        return self._client.drive(
            _page(self._client, self.reader, _query(state, queue, task, key, limit, after, order, since, until))
        )

    async def apage(
        self,
        state: State | str,
        *,
        queue: str | None = None,
        task: str | None = None,
        key: str | None = None,
        limit: int = 100,
        after: str | None = None,
        order: Order = "desc",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> JobPage:
        """See :meth:`page`."""
        query = _query(state, queue, task, key, limit, after, order, since, until)
        return await self._client.adrive(_page(self._client, self.reader, query))

    def count(self, state: State | str) -> int:
        """How many jobs are in a state now. Cost: one round trip, whatever the number of jobs."""
        name = _state(state)
        return self._client.run(operations.overview(self._client.keys, details=False)).states.get(name, 0)

    async def acount(self, state: State | str) -> int:
        """See :meth:`count`."""
        name = _state(state)
        return (await self._client.arun(operations.overview(self._client.keys, details=False))).states.get(name, 0)

    def _found(self, id: str, records: list[Record | None]) -> Job[Any]:
        if records[0] is None:
            raise not_found(id)
        return self.handle(records[0])


def _state(state: State | str) -> State:
    try:
        return State(state)
    except ValueError:
        raise OptionsError(f"there is no state {state!r}: the states are {', '.join(State)}") from None


def _query(
    state: State | str,
    queue: str | None,
    task: str | None,
    key: str | None,
    limit: int,
    after: str | None,
    order: str,
    since: datetime | None,
    until: datetime | None,
) -> _Query:
    last: tuple[str, int, str] | None = None
    if after is not None:
        score, id, index = position(after, "after")
        last = index, score, id
    low, high = window(since, until)
    for kind, name in (("queue", queue), ("task", task)):
        if name is not None:
            check_name(kind, name)
    return _Query(_state(state), queue, task, key, check_limit(limit), last, descending(order), low, high)


def _indexes(client: Client, query: _Query) -> Steps[tuple[list[str], int | None]]:
    """The structures that hold the jobs asked for, in order; and how many jobs, where that had to be asked anyway."""
    if query.state is State.BLOCKED and query.key is not None:
        return [f"chain:{query.key}"], None
    if query.state in (State.STOPPED, State.SKIPPED):
        return [], 0
    if query.state is State.READY and query.queue is not None:
        return [f"ready:{query.queue}"], None
    if query.state is State.PARKED and query.task is not None:
        return [f"parked:{query.task}"], None
    if query.state not in (State.READY, State.PARKED, State.RUNNING, State.BLOCKED):
        return [query.state], None
    seen: operations.Overview = yield operations.overview(client.keys, details=False)
    names: dict[State, list[str]] = {
        State.BLOCKED: [],
        State.READY: [f"ready:{queue.name}" for queue in seen.queues if queue.size],
        State.PARKED: [f"parked:{task}" for task in sorted(seen.parked)],
        State.RUNNING: sorted(f"claims:{worker.owner}" for worker in seen.workers if worker.running),
    }
    return names[query.state], seen.states.get(query.state, 0)


def _page(client: Client, finder: Finder, query: _Query) -> Steps[JobPage]:
    names, count = yield from _indexes(client, query)
    last: tuple[int, str] | None = None
    if query.after is not None:
        names = [name for name in names if name >= query.after[0]]
        last = query.after[1:] if query.after[0] in names else None
    several, found, looked = count is not None, list[Record](), 0
    while names:
        want = min(READ if query.filters else query.limit - len(found), READ, LOOK - looked)
        rows: list[tuple[str, str, int]]
        if several:
            rows = yield from _walked(client, query, names, last, want)
        else:
            piece: operations.Page = yield operations.page(
                client.keys, names[0], want, last, 0, query.desc, *query.scores
            )
            count, rows = piece.count if count is None else count, [(names[0], *row) for row in piece.rows]
        records: list[Record | None] = yield produce.read(client.keys, [id for _, id, _ in rows], finder=finder)
        for (name, id, score), record in zip(rows, records, strict=True):
            looked += 1
            if record is not None and query.wants(record):
                found.append(record)
            if len(found) == query.limit or looked == LOOK:
                return JobPage(found, count or 0, cursor_of(score, id, name))
        if len(rows) < want:
            names, last = names[WALK:], None
        else:
            name, id, score = rows[-1]
            names, last = names[names.index(name) :], (score, id)
    return JobPage(found, count or 0, None)


def _walked(
    client: Client, query: _Query, names: list[str], last: tuple[int, str] | None, limit: int
) -> Steps[list[tuple[str, str, int]]]:
    """The next rows of several structures: name, id and score; fewer than asked for when 50 structures hold no more."""
    some, kind = names[:WALK], names[0].partition(":")[0]
    short = [name.partition(":")[2] for name in some]
    found: list[list[tuple[str, int]]]
    found = yield operations.walk(client.keys, kind, short, limit, last, query.desc, *query.scores)
    return [(name, id, score) for name, rows in zip(some, found, strict=False) for id, score in rows]
