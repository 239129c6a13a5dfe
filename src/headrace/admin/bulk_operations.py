"""``app.bulk``: bulk operations, which are verbs on all jobs that a filter means, in bounded pieces.

1. :class:`BulkOperations`: count, start, look, stop; or do the pieces here.
2. :func:`work`: the pieces, for a program and for the job of the built-in task ``headrace.bulk``. A start of that does
   pieces for ten seconds, then gives way to others.

Each shard has a job of an operation, which does it there; their ids differ by the shard alone, and home's names it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from headrace.admin.job_paging import own_page
from headrace.errors import JobNotFound, OptionsError, Snooze, StoreFull
from headrace.model.activity import MEANS, storable
from headrace.model.ids import on_shard, shard_of
from headrace.model.job_record import Page, Record
from headrace.model.limit_rules import is_whole
from headrace.protocol import index_pages, operations, overviews, produce
from headrace.protocol.keys import Keys
from headrace.protocol.operations import BulkOperation, BulkProgress, BulkRequest, CountedPiece, JobFilter
from headrace.protocol.script import Call
from headrace.settings import microseconds
from headrace.store.client import Client, Steps, twin, verb
from headrace.tasks.bound_task import new_id
from headrace.tasks.edited_job import check_id

# Jobs of one piece; seconds that one start does pieces.
PIECE = 250
LONGEST_START = 10.0
KEPT = 7 * 86400  # seconds that an operation is shown after its end
LOOKS = 12  # a count looks so often at most: a dashboard has 20 round trips in a second
ROOM_PIECES = 20  # pieces that a program does itself where the store is too full for the operation's job
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

    @verb
    def count(self, verb: str, which: JobFilter) -> Steps[JobCount]:
        """How many jobs a verb would be done on; at most 4,800 are looked at, or 2,400 with a cause. Cost: one round
        trip to cancel all of one structure, else one for each 400 jobs, or 200 with a cause. Raises OptionsError: the
        verb is not for jobs of this state, or the filter is not complete.
        """
        return _count(self._client, verb, which)

    @verb
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
    ) -> Steps[BulkOperation]:
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

        Cost: three round trips, two for each further shard, and those of a count; in a full store up to 20 pieces of a
        deletion, done here first.
        """
        _check(verb, which, rate)
        if by not in MEANS:
            raise OptionsError(f"by must be one of {', '.join(MEANS)}, not {by!r}")
        id = new_id(self._client.keys.shard) if id is None else check_id(id)
        counted = total if total is not None else (yield from _count(self._client, verb, which))
        for keys, part in _parts(self._client, id):
            bound: CountedPiece = yield operations.count_meant(keys, which, 1)
            request = BulkRequest(
                verb, which, bound.now, rate, counted.matched, exact=counted.exact, who=storable(who, 200), by=by
            )
            yield from _stored(self._client, keys, part, request)
        return (yield from _read(self._client, id))

    def pieces(self, verb: str, which: JobFilter, *, rate: int = 0) -> Iterator[BulkProgress]:
        """Do a verb here, piece by piece, without a worker; gives how far it is after each piece. Cost: one round trip
        a piece of 250 jobs. Raises OptionsError: as for :meth:`start`.
        """
        _check(verb, which, rate)
        done = [BulkProgress()] * self._client.count
        for keys in self._client.shards:
            bound = self._client.run(operations.count_meant(keys, which, 1)).now
            request = BulkRequest(verb, which, bound, rate, 0, exact=False, who="", by="")
            for progress in work(self._client, request, keys):
                done[keys.shard] = progress
                yield operations.total_progress(done)

    @verb
    def get(self, id: str) -> Steps[BulkOperation]:
        """How far an operation is. Cost: one round trip. Raises JobNotFound: it is not stored: it ended more than a
        week ago, or never was.
        """
        return _read(self._client, id)

    @verb
    def page(self, *, limit: int = 100, after: str | None = None) -> Steps[Page[BulkOperation]]:
        """Operations, the newest first; those of a week are stored. Cost: one round trip for each 100. Raises
        OptionsError: an argument is out of range.

        Args:
            limit: of Headrace's own jobs that are looked at, 1 to 1000.
            after: ``next`` of the page before.
        """
        page = yield from own_page(self._client, limit, after)
        found = [one for record in page if (one := operations.operation_of(record)) is not None]
        if self._client.count > 1:
            found = yield from _wholes(self._client, [one.id for one in found if not shard_of(one.id)])
        return Page(found, page.count, page.next)

    @verb
    def stop(self, id: str) -> Steps[BulkOperation]:
        """Do no further piece of an operation: cancel its job. What is done stays done. Cost: three round trips, one
        for each further shard. Raises JobNotFound: it is not stored.
        """
        yield from _read(self._client, id)
        for keys, part in _parts(self._client, id):
            yield produce.cancel(keys, part, microseconds(KEPT))
        return (yield from _read(self._client, id))

    acount = twin(count)
    astart = twin(start)
    aget = twin(get)
    apage = twin(page)
    astop = twin(stop)


def _parts(client: Client, id: str) -> list[tuple[Keys, str]]:
    if client.count == 1:
        return [(client.keys, id)]
    return [(keys, on_shard(id, keys.shard)) for keys in client.shards]


def _wholes(client: Client, ids: Sequence[str]) -> Steps[list[BulkOperation]]:
    parts = [part for id in ids for _, part in _parts(client, id)]
    records: list[Record | None] = (yield produce.read(client.keys, parts)) if parts else []
    found = [None if record is None else operations.operation_of(record) for record in records]
    rows = [list(filter(None, found[n : n + client.count])) for n in range(0, len(found), client.count)]
    return [operations.whole_of(row) for row in rows if row]


def _read(client: Client, id: str) -> Steps[BulkOperation]:
    found = yield from _wholes(client, [check_id(id)])
    if not found:
        raise JobNotFound(f"no bulk operation {id} is stored: it ended more than a week ago, or never was")
    return found[0]


def _check(verb: str, which: JobFilter, rate: int = 0) -> None:
    if not isinstance(which, JobFilter):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(f"which jobs is said by a filter, such as JobFilter('failed'), not {which!r:.80}")
    which.check(verb)
    if not is_whole(rate) or rate < 0:
        raise OptionsError(f"rate must be a whole number of jobs a second, 0 for no limit, not {rate!r}")


def _whole(client: Client, which: JobFilter) -> Call[Any]:
    if which.state in ("ready", "parked"):
        return index_pages.page(client.keys, f"{which.state}:{which.queue or which.task}", index_pages.Slice(1))
    return overviews.overview(client.keys, details=False)


def _count(client: Client, verb: str, which: JobFilter) -> Steps[JobCount]:
    _check(verb, which)
    refuse = verb in ("retry", "delete")
    matched, nodes, looked, each, exact = 0, 0, 0, EACH // 2 if which.cause else EACH, True
    whole = 0
    piece: CountedPiece
    for keys in client.shards:
        after: tuple[str, str, str] | None = ("", "", "")
        for n in range(max(1, LOOKS // client.count)):
            if after is None:
                break
            calls: list[Call[Any]] = [operations.count_meant(keys, which, each, after)]
            if not n and not keys.shard and which.whole:
                calls.append(_whole(client, which))
            piece, *sizes = yield calls
            refused = piece.nodes if refuse else 0
            for size in sizes:
                whole = size.states[which.state] if isinstance(size, overviews.Overview) else size.count
            if whole and not refuse:
                return JobCount(whole, whole, True)
            matched, nodes, looked = matched + piece.matched - refused, nodes + refused, looked + piece.looked
            after = piece.last
        exact = exact and after is None
    if exact or not whole or nodes:
        return JobCount(matched, looked, exact, nodes)
    return JobCount(whole, whole, True)


def _stored(client: Client, keys: Keys, id: str, request: BulkRequest) -> Steps[None]:
    told, tries, total = b"", ROOM_PIECES if request.verb == "delete" else 0, request.total
    while True:
        try:
            args = msgspec.msgpack.encode(((), request))
            yield operations.store_own(keys, id, {"task": operations.BULK_TASK, "args": args})
            return
        except StoreFull:
            if not tries:
                raise
        # A full store takes no job. Its first pieces are done here, until there is room for one.
        tries -= 1
        told = yield _piece(client, keys, request, "", id, told)
        request = msgspec.structs.replace(request, total=max(0, total - operations.progress_of(told).done))


def _piece(client: Client, keys: Keys, request: BulkRequest, id: str, name: str, told: bytes) -> Call[bytes]:
    ttl = microseconds(client.settings.failure_ttl)
    return operations.bulk_piece(keys, id, name, request, ttl, PIECE, told)


def work(client: Client, request: BulkRequest, keys: Keys, id: str = "") -> Iterator[BulkProgress]:
    """Do pieces on one shard until the last one, as fast as the rate allows; gives how far it is after each. ``id``: of
    the job that does them, beside one on each other shard; empty: a program does. Raises Snooze: a start has had its
    time.
    """
    began, told, done, name = time.monotonic(), b"", -1, id or new_id(keys.shard)
    rate = request.rate / client.count if id else request.rate
    while True:
        told = client.run(_piece(client, keys, request, id, name, told))
        progress = operations.progress_of(told)
        yield progress
        if progress.ended:
            return
        # Of the first piece of a later start it is not known what it did itself.
        few = min(PIECE, request.rate or PIECE) if done < 0 else progress.done - done
        done, pause = progress.done, few / rate if rate else 0.0
        if id and time.monotonic() + pause - began > LONGEST_START:
            raise Snooze(pause)
        time.sleep(pause)
