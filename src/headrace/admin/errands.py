"""``app.errands``: a verb on all jobs that a filter means, done in bounded pieces that survive who began it."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from headrace.admin.job_paging import check_limit
from headrace.errors import ErrandNotFound, OptionsError
from headrace.model.activity import MEANS, storable
from headrace.model.errand import Errand, JobFilter
from headrace.model.job_record import Page
from headrace.model.limit_rules import is_whole
from headrace.protocol import index_pages, operations
from headrace.protocol.operations import CountedPiece
from headrace.protocol.script import Call
from headrace.settings import microseconds
from headrace.store.client import Client, Steps

# Jobs of one piece, as of the pieces that workers do.
PIECE = 250
# A count looks so often at most: a dashboard has 20 round trips in a second.
LOOKS = 15
# Jobs of one look, which takes the server two milliseconds; half as many where errors must be read for their causes.
EACH = 400


class JobCount(msgspec.Struct, frozen=True):
    """How many jobs a filter means now.

    Attributes:
        matched: this many were found on which the verb would be done.
        looked: among this many.
        exact: these were all.
        nodes: further ones that are nodes of workflows and refuse: a workflow is retried or deleted as a whole.
    """

    matched: int
    looked: int
    exact: bool
    nodes: int = 0


class Errands:
    """Verbs on many jobs: begin, look, stop. Each verb has an asynchronous pair.

    An errand is stored, with a cursor. Workers do it in pieces of 250 jobs, between their claims; it goes on when the
    program that began it has ended. It touches only jobs that were in their state when it began. It cannot be undone.
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
    ) -> Errand:
        """Begin to do a verb on all jobs that a filter means now, and do the first piece.

        Args:
            verb: ``retry``, ``cancel`` or ``delete``.
            who, by: who begins it, and by which means; see :meth:`ActLog.record`.
            rate: jobs a second at most, so that many retries are no stampede; 0: as fast as pieces are done.
            total: what :meth:`count` has counted; None: it is counted now.
            id: of the errand, letters and digits; made when left out. Begun again by the same id, it is still one.

        Returns:
            the errand after its first piece; small ones have ended by then.

        Raises:
            OptionsError: as for :meth:`count`, or the rate is below 0.
            ErrandNotFound: no errand can have this id.

        Cost: two round trips, and those of a count.
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
    ) -> Errand:
        """See :meth:`start`."""
        return await self._client.adrive(_start(self._client, verb, which, who, by, rate, total, id))

    def get(self, id: str) -> Errand:
        """How far an errand has come.

        Raises:
            ErrandNotFound: it is not stored: it ended more than a week ago, or never was.

        Cost: one round trip.
        """
        return self._client.drive(_read(self._client, id))

    async def aget(self, id: str) -> Errand:
        """See :meth:`get`."""
        return await self._client.adrive(_read(self._client, id))

    def page(self, *, limit: int = 100, after: str | None = None) -> Page[Errand]:
        """Errands, the newest first; those of a week, and a thousand at most, are stored.

        Args:
            limit: at most 100 are given.
            after: ``next`` of the page before.

        Raises:
            OptionsError: the limit is not 1 to 1000.

        Cost: one round trip.
        """
        return self._client.run(_newest(self._client, limit, after))

    async def apage(self, *, limit: int = 100, after: str | None = None) -> Page[Errand]:
        """See :meth:`page`."""
        return await self._client.arun(_newest(self._client, limit, after))

    def stop(self, id: str) -> Errand:
        """Do no further piece of an errand; what is done stays done.

        Raises:
            ErrandNotFound: it is not stored.

        Cost: two round trips.
        """
        return self._client.drive(_stop(self._client, id))

    async def astop(self, id: str) -> Errand:
        """See :meth:`stop`."""
        return await self._client.adrive(_stop(self._client, id))

    def work(self, id: str) -> Errand:
        """Do the next piece of an errand here, as a worker would: for programs that wait for its end.

        Raises:
            ErrandNotFound: it is not stored.

        Cost: one round trip, O(250 jobs).
        """
        return self._client.drive(_work(self._client, id))

    async def awork(self, id: str) -> Errand:
        """See :meth:`work`."""
        return await self._client.adrive(_work(self._client, id))


def new_id() -> str:
    return os.urandom(8).hex()


def _id(id: str) -> str:
    if not id or not id.isalnum() or not id.isascii():
        raise ErrandNotFound(f"{id!r:.80} is not the id of an errand")
    return id


def _found(id: str, errand: Errand | None) -> Errand:
    if errand is None:
        raise ErrandNotFound(f"no errand {id} is stored: it ended more than a week ago, or never was")
    return errand


def _newest(client: Client, limit: int, after: str | None) -> Call[Page[Errand]]:
    return operations.read_errands(client.keys, "", min(100, check_limit(limit)), after or "")


def _read(client: Client, id: str) -> Steps[Errand]:
    errands: Page[Errand] = yield operations.read_errands(client.keys, _id(id))
    return _found(id, next(iter(errands), None))


def _work(client: Client, id: str) -> Steps[Errand]:
    errand: Errand | None = yield operations.bite(client.keys, _id(id), PIECE)
    return _found(id, errand)


def _check(verb: str, which: JobFilter) -> None:
    if not isinstance(which, JobFilter):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(f"which jobs is said by a filter, such as JobFilter('failed'), not {which!r:.80}")
    which.check(verb)


def _count(client: Client, verb: str, which: JobFilter) -> Steps[JobCount]:
    _check(verb, which)
    refuse = verb in ("retry", "delete")
    matched, nodes, looked, after, each = 0, 0, 0, ("", "", ""), EACH // 2 if which.cause else EACH
    whole = 0
    piece: CountedPiece
    for n in range(LOOKS):
        calls: list[Call[Any]] = [operations.count_meant(client.keys, which, each, after)]
        if not n and which.whole:
            index = f"{which.state}:{which.queue or which.task}" if which.state in ("ready", "parked") else which.state
            calls.append(index_pages.page(client.keys, index, 1))
        piece, *pages = yield calls
        refused = piece.nodes if refuse else 0
        whole = pages[0].count if pages else whole
        if whole and not refuse:
            return JobCount(whole, whole, True)
        matched, nodes, looked = matched + piece.matched - refused, nodes + refused, looked + piece.looked
        if piece.last is None:
            return JobCount(matched, looked, True, nodes)
        after = piece.last
    return JobCount(whole, whole, True) if whole and not nodes else JobCount(matched, looked, False, nodes)


def _start(
    client: Client, verb: str, which: JobFilter, who: str, by: str, rate: int, total: JobCount | None, id: str | None
) -> Steps[Errand]:
    _check(verb, which)
    if not is_whole(rate) or rate < 0:
        raise OptionsError(f"rate must be a whole number of jobs a second, 0 for no limit, not {rate!r}")
    if by not in MEANS:
        raise OptionsError(f"by must be one of {', '.join(MEANS)}, not {by!r}")
    id = new_id() if id is None else _id(id)
    counted = total if total is not None else (yield from _count(client, verb, which))
    fields: dict[str, str | int] = {
        "verb": verb, "state": which.state, "queue": which.queue, "task": which.task, "key": which.key,
        "cause": which.cause, "who": storable(who, 200), "by": by, "rate": rate,
        "total": counted.matched, "exact": int(counted.exact), "ttl": microseconds(client.settings.failure_ttl),
    }  # fmt: skip
    kept = {name: value for name, value in fields.items() if value != ""}
    # One after the other: where a server must learn a script first, calls of one round trip change places.
    yield operations.begin_errand(client.keys, id, kept)
    return (yield from _work(client, id))


def _stop(client: Client, id: str) -> Steps[Errand]:
    yield operations.stop_errand(client.keys, _id(id))
    return (yield from _read(client, id))
