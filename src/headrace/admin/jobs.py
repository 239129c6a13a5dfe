"""All jobs of an application: by id, counted, and in pages by state. Each verb has an asynchronous pair.

A verb on several jobs that are named by their ids, as one or two round trips, and what became of each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec

from headrace.admin.job_paging import Order, own_page, page_of, query_of, state_of
from headrace.errors import CorruptRecord, HeadraceError, JobNotFound, OptionsError, StoreUnavailable
from headrace.model.ids import rows_by_shard
from headrace.model.job import State
from headrace.model.job_record import Page, PlainReader, Record, ValueReader
from headrace.protocol import overviews, produce
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call
from headrace.settings import microseconds
from headrace.store.client import Client, Steps, then, twin, verb
from headrace.tasks.edited_job import ByName, cancelled, check_id, deleted, edited, not_found, retried
from headrace.tasks.job_handle import Job
from headrace.tasks.reasons import Why, explain
from headrace.tasks.task import Task

VERBS = ("retry", "cancel", "delete")
PIECE = 500  # jobs of one round trip

# What reads a job's values, and how many seconds its failure stays; None: as the settings say.
Find = Callable[[Record], tuple[ValueReader, float | None]]


class JobReply(msgspec.Struct, frozen=True):
    """What became of one of several jobs.

    Attributes:
        id: of the job.
        done: whether the verb was done.
        words: what the store replied: ``is ready again``; or why nothing was done.
        error: what the verb on this job alone would have raised; None where it would not have.
    """

    id: str
    done: bool
    words: str
    error: HeadraceError | None = None


def _by_shard(client: Client, ids: list[str]) -> list[list[str]]:
    if client.count == 1:
        return [ids]
    from headrace.store.shard_routes import ShardRouter

    rows = rows_by_shard(map(ShardRouter(client.shards).of, ids))
    return [[ids[n] for n in mine] for mine in rows.values()]


def _piece(client: Client, find: Find, verb: str, ids: list[str]) -> Steps[list[JobReply]]:
    refused: dict[str, HeadraceError] = {}
    for id in ids:
        try:
            check_id(id)
        except JobNotFound as error:
            refused[id] = error
    known = [id for id in ids if id not in refused]
    ttls: dict[str, int] = {}
    if verb == "cancel" and known:
        # How long a cancelled job stays is its task's to say.
        found: list[Record | None] = yield produce.read(client.keys, known, lean=True)
        refused |= {id: not_found(id) for id, record in zip(known, found, strict=True) if record is None}
        usual = client.settings.failure_ttl
        for record in filter(None, found):
            own = find(record)[1]
            ttls[record.id] = microseconds(usual if own is None else own)
        known = list(ttls)
    words: list[str] = (yield [_call(client.keys, verb, id, ttls.get(id, 0)) for id in known]) if known else []
    told = dict(zip(known, words, strict=True))
    return [JobReply(id, False, str(refused[id]), refused[id]) if id in refused else _reply(verb, id, told[id])
            for id in ids]  # fmt: skip


def _call(keys: Keys, verb: str, id: str, ttl: int) -> Call[str]:
    if verb == "cancel":
        return produce.cancel(keys, id, ttl)
    return produce.rerun(keys, id, os.urandom(8).hex()) if verb == "retry" else produce.delete(keys, id)


def _reply(verb: str, id: str, word: str) -> JobReply:
    try:
        if verb == "cancel":
            return _cancelled(id, cancelled(id, word))
        (retried if verb == "retry" else deleted)(id, word)
    except HeadraceError as error:
        return JobReply(id, False, str(error), error)
    return JobReply(id, True, "is ready again" if verb == "retry" else "is deleted")


def _cancelled(id: str, state: State) -> JobReply:
    if state is State.RUNNING:
        return JobReply(id, True, "is running and was asked to stop")
    if state is State.CANCELLED:
        return JobReply(id, True, "is cancelled")
    return JobReply(id, False, f"had ended already: {state}" if state.final else f"is {state}")


class Jobs:
    """``app.jobs``."""

    def __init__(self, client: Client, tasks: Mapping[str, Task[..., Any, Any]], by_name: ByName | None = None) -> None:
        self._client = client
        self._tasks = tasks
        self._by_name = by_name

    @verb
    def get(self, id: str) -> Steps[Job[Any]]:
        """A handle on the stored job of this id; its result has the type of its task, if that is defined here. Cost:
        one round trip. Raises JobNotFound: nothing is stored under this id, or it is not the id of a job.
        """
        return then(produce.read(self._client.keys, [check_id(id)]), lambda found: self._found(id, found))

    def handle(self, record: Record) -> Job[Any]:
        """A handle on the job of a record that was read. Cost: none."""
        return Job(self._client, record.id, record.task, *self._find(record))

    def _find(self, record: Record) -> tuple[ValueReader, float | None]:
        task = self._tasks.get(record.task)
        if task is None:
            return PlainReader(record.task), None
        failure_ttl = None
        with suppress(CorruptRecord):
            failure_ttl = task.plan(record.options).failure_ttl / 1_000_000
        return PlainReader(record.task) if produce.is_map_node(record.fields) else task.signature, failure_ttl

    def handle_of(self, id: str) -> Job[Any]:
        """A handle on the job of this id, whether one is stored or not; ``app.job(id)``.

        Its first ``result``, ``cancel`` or ``refresh`` reads which task it is of: the first two take one trip more.
        Cost: none. Raises JobNotFound: it is not the id of a job.
        """
        if callable(id):
            raise OptionsError("app.job(id) is a handle on a stored job: @app.task makes a task")
        return Job(self._client, check_id(id), "", None, None, self._find)

    @verb
    def apply(self, verb: str, ids: Sequence[str]) -> Steps[list[JobReply]]:
        """``retry``, ``cancel`` or ``delete`` several jobs, each as its handle would; what became of each, in order.
        Cost: one round trip for each 500 jobs of a shard, two to cancel them. Raises OptionsError: there is no such
        verb. StoreUnavailable: no shard answered. What one job raises is in its reply, and stops no other; so is that
        its shard does not answer.
        """
        if verb not in VERBS:
            raise OptionsError(f"there is no verb {verb!r} for jobs by id: there are {', '.join(VERBS)}")
        replies, away = dict[str, JobReply](), dict[str, StoreUnavailable]()
        chosen = list(dict.fromkeys(ids))
        for part in _by_shard(self._client, chosen):
            try:
                for start in range(0, len(part), PIECE):
                    found = yield from _piece(self._client, self._find, verb, part[start : start + PIECE])
                    replies |= {one.id: one for one in found}
            except StoreUnavailable as error:
                if not replies and len(away) + len(part) == len(chosen):
                    raise
                away |= dict.fromkeys(part, error)
        return [replies.get(id) or JobReply(id, False, f"job {id}: {away[id]}", away[id]) for id in chosen]

    def again(self, id: str, changes: Mapping[str, Any] | None = None, *, request_id: str | None = None) -> Job[Any]:
        """A new job of the same task, with the options of a stored one and, but for ``changes``, its arguments.

        Its header ``headrace-again-of`` names the stored one, which stays as it is.

        Args:
            changes: arguments by name, or by number (``"1"``) where the task is not defined here; plain values.
            request_id: of the new job: asked for again by the same id, it is still one.

        Raises:
            JobNotFound, StateError: nothing is stored, or it takes what other jobs of its workflow return.
            OptionsError: the changes are no dictionary of arguments.
            ArgumentError and others: as :meth:`headrace.Task.enqueue`.

        Cost: two round trips.
        """
        found = self._client.run(produce.read(self._client.keys, [check_id(id)]))
        job: Job[Any] = edited(id, found[0], self.reader, self._by_name, changes or {}, request_id).enqueue()
        return job

    async def aagain(
        self, id: str, changes: Mapping[str, Any] | None = None, *, request_id: str | None = None
    ) -> Job[Any]:
        """See :meth:`again`."""
        found = await self._client.arun(produce.read(self._client.keys, [check_id(id)]))
        job: Job[Any] = await edited(id, found[0], self.reader, self._by_name, changes or {}, request_id).aenqueue()
        return job

    @verb
    def why(self, id: str) -> Steps[Why]:
        """Why a job does not run; see :meth:`headrace.Job.why`. A request id is answered with the job that it made.
        Cost: one round trip, or two.
        """
        return explain(self._client, id)

    def reader(self, task: str) -> ValueReader:
        """What makes values of the arguments and results of this task; plain ones where it is not defined here."""
        known = self._tasks.get(task)
        return PlainReader(task) if known is None else known.signature

    @verb
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
        values: bool = True,
    ) -> Steps[Page[Record]]:
        """Jobs of one state, a page at a time.

        Finished ones are in the order of their ends, running ones of their starts, others of their due times.
        Ready jobs of several queues come queue by queue, running ones worker by worker, parked ones task by task.
        Behind the jobs of a queue come those that a limit holds back, by its values and their turns.

        Args:
            queue, task, key: only theirs; a page looks at 10,000 jobs at most, so it may hold fewer than ``limit``.
                Blocked jobs, ordered ones that wait for their turn, are listed by key only.
            limit: 1 to 1000.
            after: ``next`` of the page before.
            order: ``desc``: the newest first; of ready jobs, those that start last.
            since, until: inclusive, with a time zone. Of ready jobs a page then looks at 20,000 at most, too.
            values: read arguments and results, too. False: no results, and no arguments of more than 4 KiB.

        Returns:
            records. Its ``count`` is of this state, or of the one structure that the queue, task or key names.

        Raises:
            OptionsError: an argument is out of range.

        Cost: one round trip, one more to learn which queues or workers there are, and one for each further 50 of
        these that hold jobs, 100 jobs that are read, or 1,000 that are looked at. Of several shards two for each of
        the latter: one to find the jobs, one to read those of the page.
        """
        query = query_of(state, queue, task, key, limit, after, order, since, until, values)
        return then(page_of(self._client, self.reader, query), lambda found: found.page)

    @verb
    def own(self, *, limit: int = 100, after: str | None = None) -> Steps[Page[Record]]:
        """Headrace's own jobs, which no other list shows: calls of hooks and bulk operations, the newest first. Cost:
        one round trip for each 100. Raises OptionsError: an argument is out of range.

        Args:
            limit: 1 to 1000; those that have left meanwhile count.
            after: ``next`` of the page before.
        """
        return own_page(self._client, limit, after)

    @verb
    def count(self, state: State | str) -> Steps[int]:
        """How many jobs are in a state now. Cost: one round trip, whatever the number of jobs."""
        name, call = state_of(state), overviews.overview(self._client.keys, details=False)
        return then(call, lambda found: found.states.get(name, 0))

    def _found(self, id: str, records: list[Record | None]) -> Job[Any]:
        if records[0] is None:
            raise not_found(id)
        return self.handle(records[0])

    aget = twin(get)
    aapply = twin(apply)
    awhy = twin(why)
    apage = twin(page)
    aown = twin(own)
    acount = twin(count)
