"""``app.bulk``: bulk operations, which are verbs on all jobs that a filter means, in bounded pieces.

1. :class:`BulkOperations`: count, start, look, stop; or do the pieces here.
2. :func:`work`: the pieces, for a program and for the job of the built-in task ``headrace.bulk``. A start of that does
   pieces for ten seconds, then gives way to others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec

from headrace.admin.job_paging import own_page
from headrace.errors import JobNotFound, OptionsError, Snooze, StoreFull
from headrace.model.activity import MEANS, storable
from headrace.model.bulk_operation import (
    BULK_TASK,
    BulkOperation,
    BulkProgress,
    BulkRequest,
    JobFilter,
    operation_of,
    progress_of,
)
from headrace.model.job_record import Page, Record
from headrace.model.limit_rules import is_whole
from headrace.protocol import index_pages, operations, overviews, produce
from headrace.protocol.operations import CountedPiece
from headrace.protocol.script import Call
from headrace.settings import microseconds
from headrace.store.client import Client, Steps
from headrace.tasks.bound_task import new_id
from headrace.tasks.edited_job import check_id

# Jobs of one piece; seconds that one start does pieces.
PIECE = 250
LONGEST_START = 10.0
# Seconds that an operation is shown after its end.
KEPT = 7 * 86400
# A count looks so often at most: a dashboard has 20 round trips in a second.
LOOKS = 15
# Pieces that a program does itself where the store is too full for the operation's job.
ROOM_PIECES = 20
# Jobs of one look, which takes the server two milliseconds; half as many where errors must be read for their causes.
EACH = 400


class JobCount(msgspec.Struct, frozen=True):
    """How many jobs a filter means now.

    Attributes:
        matched: jobs on which the verb would be done.
        looked: jobs that were looked at.
        exact: these were all.
        nodes: further ones that are nodes of workflows and refuse: a workflow is retried or deleted as a whole.
    """

    matched: int
    looked: int
    exact: bool
    nodes: int = 0


class BulkOperations:
    """Verbs on many jobs. Each verb has an asynchronous pair.

    An operation is a job of Headrace's own, which any worker runs: it goes on when the program that started it has
    ended, and it is retried when its worker dies. It touches only jobs that were in their state when it was started. It
    cannot be undone.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def count(self, verb: str, which: JobFilter) -> JobCount:
        """How many jobs a verb would be done on; at most 6,000 are looked at, or 3,000 with a cause.

        Raises:
            OptionsError: the verb is not for jobs of this state, or the filter is not complete.

        Cost: one round trip to cancel all of one structure, else one for each 400 jobs, or 200 with a cause.
        """
        return self._client.drive(_count(self._client, verb, which))

    async def acount(self, verb: str, which: JobFilter) -> JobCount:
        """See :meth:`count`."""
        return await self._client.adrive(_count(self._client, verb, which))

    def start(
        self,
        verb: str,
        which: JobFilter,
        *,
        who: str,
        by: str = "program",
        rate: int = 0,
        total: JobCount | None = None,
        id: str | None = None,
    ) -> BulkOperation:
        """Store a job that does a verb on all jobs which a filter means now.

        Args:
            verb: ``retry``, ``cancel`` or ``delete``.
            who, by: who starts it, and by which means; see :meth:`ActLog.record`.
            rate: jobs a second at most; 0: as fast as pieces are done.
            total: what :meth:`count` has counted; None: it is counted now.
            id: of the job; made when left out. Started again by the same id, it is still one.

        Returns:
            the operation, which a worker does.

        Raises:
            OptionsError: as for :meth:`count`, or the rate is below 0.
            JobNotFound: no job can have this id.

        Cost: three round trips, and those of a count; in a full store up to 20 pieces of a deletion, done here first.
        """
        return self._client.drive(_start(self._client, verb, which, who, by, rate, total, id))

    async def astart(
        self,
        verb: str,
        which: JobFilter,
        *,
        who: str,
        by: str = "program",
        rate: int = 0,
        total: JobCount | None = None,
        id: str | None = None,
    ) -> BulkOperation:
        """See :meth:`start`."""
        return await self._client.adrive(_start(self._client, verb, which, who, by, rate, total, id))

    def pieces(self, verb: str, which: JobFilter, *, rate: int = 0) -> Iterator[BulkProgress]:
        """Do a verb here, piece by piece, without a worker; gives how far it is after each piece.

        Raises:
            OptionsError: as for :meth:`start`.

        Cost: one round trip a piece of 250 jobs.
        """
        _check(verb, which, rate)
        bound = self._client.run(operations.count_meant(self._client.keys, which, 1)).now
        yield from work(self._client, BulkRequest(verb, which, bound, rate, 0, exact=False, who="", by=""))

    def get(self, id: str) -> BulkOperation:
        """How far an operation is.

        Raises:
            JobNotFound: it is not stored: it ended more than a week ago, or never was.

        Cost: one round trip.
        """
        return self._client.drive(_read(self._client, id))

    async def aget(self, id: str) -> BulkOperation:
        """See :meth:`get`."""
        return await self._client.adrive(_read(self._client, id))

    def page(self, *, limit: int = 100, after: str | None = None) -> Page[BulkOperation]:
        """Operations, the newest first; those of a week are stored.

        Args:
            limit: of Headrace's own jobs that are looked at, 1 to 1000.
            after: ``next`` of the page before.

        Raises:
            OptionsError: an argument is out of range.

        Cost: one round trip for each 100.
        """
        return self._client.drive(_operations(self._client, limit, after))

    async def apage(self, *, limit: int = 100, after: str | None = None) -> Page[BulkOperation]:
        """See :meth:`page`."""
        return await self._client.adrive(_operations(self._client, limit, after))

    def stop(self, id: str) -> BulkOperation:
        """Do no further piece of an operation: cancel its job. What is done stays done.

        Raises:
            JobNotFound: it is not stored.

        Cost: three round trips.
        """
        return self._client.drive(_stop(self._client, id))

    async def astop(self, id: str) -> BulkOperation:
        """See :meth:`stop`."""
        return await self._client.adrive(_stop(self._client, id))


def _operations(client: Client, limit: int, after: str | None) -> Steps[Page[BulkOperation]]:
    page = yield from own_page(client, limit, after)
    return Page([one for record in page if (one := operation_of(record)) is not None], page.count, page.next)


def _read(client: Client, id: str) -> Steps[BulkOperation]:
    records: list[Record | None] = yield produce.read(client.keys, [check_id(id)])
    record = records[0]
    found = None if record is None else operation_of(record)
    if found is None:
        raise JobNotFound(f"no bulk operation {id} is stored: it ended more than a week ago, or never was")
    return found


def _check(verb: str, which: JobFilter, rate: int = 0) -> None:
    if not isinstance(which, JobFilter):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(f"which jobs is said by a filter, such as JobFilter('failed'), not {which!r:.80}")
    which.check(verb)
    if not is_whole(rate) or rate < 0:
        raise OptionsError(f"rate must be a whole number of jobs a second, 0 for no limit, not {rate!r}")


def _whole(client: Client, which: JobFilter) -> Call[Any]:
    if which.state in ("ready", "parked"):
        return index_pages.page(client.keys, f"{which.state}:{which.queue or which.task}", 1)
    return overviews.overview(client.keys, details=False)


def _count(client: Client, verb: str, which: JobFilter) -> Steps[JobCount]:
    _check(verb, which)
    refuse = verb in ("retry", "delete")
    matched, nodes, looked, after, each = 0, 0, 0, ("", "", ""), EACH // 2 if which.cause else EACH
    whole = 0
    piece: CountedPiece
    for n in range(LOOKS):
        calls: list[Call[Any]] = [operations.count_meant(client.keys, which, each, after)]
        if not n and which.whole:
            calls.append(_whole(client, which))
        piece, *sizes = yield calls
        refused = piece.nodes if refuse else 0
        for size in sizes:
            whole = size.states[which.state] if isinstance(size, overviews.Overview) else size.count
        if whole and not refuse:
            return JobCount(whole, whole, True)
        matched, nodes, looked = matched + piece.matched - refused, nodes + refused, looked + piece.looked
        if piece.last is None:
            return JobCount(matched, looked, True, nodes)
        after = piece.last
    return JobCount(whole, whole, True) if whole and not nodes else JobCount(matched, looked, False, nodes)


def _start(
    client: Client, verb: str, which: JobFilter, who: str, by: str, rate: int, total: JobCount | None, id: str | None
) -> Steps[BulkOperation]:
    _check(verb, which, rate)
    if by not in MEANS:
        raise OptionsError(f"by must be one of {', '.join(MEANS)}, not {by!r}")
    id = new_id(client.keys.shard) if id is None else check_id(id)
    counted = total if total is not None else (yield from _count(client, verb, which))
    bound: CountedPiece = yield operations.count_meant(client.keys, which, 1)
    request = BulkRequest(
        verb, which, bound.now, rate, counted.matched, exact=counted.exact, who=storable(who, 200), by=by
    )
    told, tries = b"", ROOM_PIECES if verb == "delete" else 0
    while True:
        try:
            args = msgspec.msgpack.encode(((), request))
            yield operations.store_own(client.keys, id, {"task": BULK_TASK, "args": args})
            return (yield from _read(client, id))
        except StoreFull:
            if not tries:
                raise
        # A full store takes no job. Its first pieces are done here, until there is room for one.
        tries -= 1
        told = yield _piece(client, request, "", id, told)
        request = msgspec.structs.replace(request, total=max(0, counted.matched - progress_of(told).done))


def _stop(client: Client, id: str) -> Steps[BulkOperation]:
    yield from _read(client, id)
    yield produce.cancel(client.keys, id, microseconds(KEPT))
    return (yield from _read(client, id))


def _piece(client: Client, request: BulkRequest, id: str, name: str, told: bytes) -> Call[bytes]:
    ttl = microseconds(client.settings.failure_ttl)
    return operations.bulk_piece(client.keys, id, name, request, ttl, PIECE, told)


def work(client: Client, request: BulkRequest, id: str = "") -> Iterator[BulkProgress]:
    """Do pieces until the last one, as fast as the rate allows; gives how far it is after each.

    Args:
        id: of the job that does them; empty: a program does.

    Raises:
        Snooze: the start of the job has had its time.
    """
    began, told, done, name = time.monotonic(), b"", -1, id or new_id(client.keys.shard)
    while True:
        told = client.run(_piece(client, request, id, name, told))
        progress = progress_of(told)
        yield progress
        if progress.ended:
            return
        # Of the first piece of a later start it is not known what it did itself.
        few = min(PIECE, request.rate or PIECE) if done < 0 else progress.done - done
        done, pause = progress.done, few / request.rate if request.rate else 0.0
        if id and time.monotonic() + pause - began > LONGEST_START:
            raise Snooze(pause)
        time.sleep(pause)
