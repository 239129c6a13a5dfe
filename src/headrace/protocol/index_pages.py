"""Pieces of the structures that hold jobs: by score, of one structure or of several of a kind.

A look at the next jobs of one structure: which may match a search. What does not match stays in the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.model.job import moment
from headrace.model.job_record import Finder, Record
from headrace.protocol.keys import Keys
from headrace.protocol.produce import LISTED_ARGS, records_of
from headrace.protocol.script import Call, load, text_of


class IndexPage(msgspec.Struct, frozen=True):
    """Part of an index: the size of all of it, ids with their scores, and what is stored of each, if that was asked."""

    count: int
    rows: list[tuple[str, int]]
    records: list[Record | None] = msgspec.field(default_factory=list[Record | None])


def rows_of(flat: Sequence[bytes]) -> list[tuple[str, int]]:
    """A reply of ids and scores by turns, as pairs."""
    return [(text_of(flat[n]), moment(flat[n + 1])) for n in range(0, len(flat), 2)]


def slice_of(
    limit: int, after: tuple[int, str] | None, offset: int, desc: bool, since: int | None, until: int | None
) -> dict[str, Any]:
    """Which piece of an index is wanted, as the scripts that include ``slice`` take it."""
    return {
        "after": str(after[0]) if after else "",
        "member": after[1] if after else "",
        "offset": offset,
        "limit": limit,
        "desc": int(desc),
        "low": "-inf" if since is None else str(since),
        "high": "+inf" if until is None else str(until),
    }


def _most(values: bool | None) -> int:
    """How much a script tells of each job, as it takes that."""
    return -1 if values is None else 0 if values else LISTED_ARGS


def page(
    keys: Keys,
    index: str,
    limit: int = 100,
    after: tuple[int, str] | None = None,
    offset: int = 0,
    desc: bool = True,
    since: int | None = None,
    until: int | None = None,
    *,
    values: bool | None = None,
    finder: Finder | None = None,
) -> Call[IndexPage]:
    """A piece of one structure, by score.

    Args:
        index: ``scheduled``, a final state, ``ready:<queue>``, ``parked:<task>``, ``chain:<key>``, ``claims:<owner>``.
        limit: at most 1000; 500 with records.
        after: score and id of the last row seen.
        since, until: inclusive bounds of the score, microseconds.
        values: with what is stored of each job; False: as lists show it, see :func:`headrace.protocol.produce.read`.
        finder: gives what reads its values; None: they are read plain.

    Cost: one round trip, O(log n + limit).
    """
    piece = slice_of(limit, after, offset, desc, since, until)

    def parsed(reply: Any) -> IndexPage:
        return IndexPage(reply[0], rows_of(reply[1]), records_of(reply[2], finder))

    return load("page").bind(keys, parsed, index=index, most=_most(values), **piece)


# Structures that one walk looks at.
WALK = 50


class WalkedPart(msgspec.Struct, frozen=True):
    """Parts of several indexes: ids and scores of each that was looked at, and what is stored of each job, if asked.

    Behind each queue come the lanes in which its limited jobs wait, ``<queue>|...``, as indexes of their own.
    """

    rows: list[tuple[str, list[tuple[str, int]]]]
    records: list[Record | None]


def walk(
    keys: Keys,
    kind: str,
    names: Sequence[str],
    limit: int,
    after: tuple[int, str] | None = None,
    desc: bool = True,
    since: int | None = None,
    until: int | None = None,
    values: bool | None = None,
    finder: Finder | None = None,
) -> Call[WalkedPart]:
    """Jobs of several structures of one kind, one after the other, until there are ``limit``.

    Args:
        kind: ``ready``, ``parked`` or ``claims``.
        names: queues, tasks or owners, at most ``WALK``; the first may be a lane.
        limit: at most 1000; 500 with records.
        after: score and id of the last row seen of the first of them.
        since, until: inclusive bounds of the score, microseconds.
        values, finder: as of :func:`page`.

    Cost: one round trip, O(names log n + limit), and a command for each lane.
    """
    piece = slice_of(limit, after, 0, desc, since, until)
    del piece["offset"]

    def parsed(reply: Any) -> WalkedPart:
        parts = [(name.decode("utf-8", "surrogateescape"), rows_of(rows)) for name, rows in reply[0]]
        return WalkedPart(parts, records_of(reply[1], finder))

    return load("walk").bind(keys, parsed, kind=kind, names=list(names), most=_most(values), **piece)


# Jobs that one call looks at: for two milliseconds of the server.
MOST = 250


class LookedPiece(msgspec.Struct, frozen=True):
    """What a look found.

    Attributes:
        count: jobs of the whole structure.
        looked: how many were looked at.
        rows: ids and scores of those that may match.
        last: score and id of the last one that was looked at; None: there is no more.
    """

    count: int
    looked: int
    rows: list[tuple[str, int]]
    last: tuple[int, str] | None


def _looked(reply: Any) -> LookedPiece:
    count, looked, rows, score, id = reply
    last = rows_of([id, score])[0] if id else None
    return LookedPiece(count, looked, rows_of(rows), None if last is None else (last[1], last[0]))


def look(
    keys: Keys,
    index: str,
    words: Sequence[str] = (),
    *,
    queue: str = "",
    task: str = "",
    key: str = "",
    limit: int = MOST,
    after: tuple[int, str] | None = None,
    offset: int = 0,
    since: int | None = None,
    until: int | None = None,
) -> Call[LookedPiece]:
    """Which of the next jobs of a structure may match, newest first.

    Args:
        index: ``scheduled``, a final state, ``ready:<queue>`` or ``parked:<task>``.
        words: in lower case; each is in the job's id, task, key, the type and message of its error (of which 4 KiB are
            looked at), or arguments of at most 4 KiB, as they are stored.
        queue, task, key: only theirs; empty: any.
        limit: jobs to look at, at most ``MOST``.
        after: score and id of the last one seen.
        offset: jobs that are passed over, since another look of the same round trip has them.
        since, until: inclusive bounds of the score, microseconds.

    Cost: one round trip, O(log n + limit).
    """
    piece = slice_of(limit, after, offset, True, since, until)
    del piece["desc"]
    return load("look").bind(keys, _looked, index=index, words=list(words), queue=queue, task=task, key=key, **piece)
