"""Pieces of the structures that hold jobs: by score, of one structure or of several of a kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.model.job import State, moment
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
    return [(text_of(flat[n]), moment(flat[n + 1])) for n in range(0, len(flat), 2)]


class Slice(msgspec.Struct, frozen=True):
    """Which piece of an index is wanted, in the order of its scores.

    Attributes:
        limit: rows at most: 1000; 500 with records.
        after: score and id of the last row of the piece before; None: from the beginning.
        offset: rows to pass over.
        desc: from the greatest score down.
        since, until: inclusive bounds of the score, microseconds.
    """

    limit: int = 100
    after: tuple[int, str] | None = None
    offset: int = 0
    desc: bool = True
    since: int | None = None
    until: int | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        return {
            "after": str(self.after[0]) if self.after else "",
            "member": self.after[1] if self.after else "",
            "offset": self.offset,
            "limit": self.limit,
            "desc": int(self.desc),
            "low": "-inf" if self.since is None else str(self.since),
            "high": "+inf" if self.until is None else str(self.until),
        }


FIRST = Slice()


def _most(values: bool | None) -> int:
    return -1 if values is None else 0 if values else LISTED_ARGS


def page(
    keys: Keys, index: str, piece: Slice = FIRST, *, values: bool | None = None, finder: Finder | None = None
) -> Call[IndexPage]:
    """A piece of one structure, by score; O(log n + limit).

    Args:
        index: ``scheduled``, a final state, ``ready:<queue>``, ``parked:<task>``, ``chain:<key>``, ``claims:<owner>``.
        values: with what is stored of each job; False: as lists show it, see :func:`headrace.protocol.produce.read`.
        finder: gives what reads its values; None: they are read plain.
    """

    def parsed(reply: Any) -> IndexPage:
        return IndexPage(reply[0], rows_of(reply[1]), records_of(reply[2], finder))

    return load("page").bind(keys, parsed, index=index, most=_most(values), **piece.arguments)


# Structures that one walk looks at, and jobs whose text it does: for two milliseconds of the server.
WALK = 50
SEARCHED = 250


class WalkedPart(msgspec.Struct, frozen=True):
    """What a walk over several structures found.

    Attributes:
        count: jobs of the first structure; ``lined``: its rows that are in none of its lanes.
        looked: how many jobs were looked at.
        rows: ids and scores of those that may match.
        behind: structures that have been looked at whole, if ``last`` is there.
        place: of a queue, the lane of the last job; empty: the job is in its line.
        last: score and id of the last job that was looked at; None: there is no more.
    """

    count: int
    looked: int
    rows: list[tuple[str, int]]
    records: list[Record | None]
    behind: int = 0
    place: str = ""
    last: tuple[int, str] | None = None
    lined: int = 0


def walk(
    keys: Keys, names: Sequence[str], piece: Slice, *, place: str = "", looks: int = 1000, queue: str | None = None,
    task: str | None = None, key: str | None = None, words: Sequence[str] = (), values: bool | None = None,
    finder: Finder | None = None,
) -> Call[WalkedPart]:  # fmt: skip
    """Jobs of several structures, one after the other, until there are ``limit``; what does not match stays there.

    Args:
        names: structures as of :func:`page`, at most ``WALK``; lanes of limited jobs come behind the line of a queue.
        piece: of all of them, without an offset; ``after`` is a row of the first of them, in its lane ``place``.
        looks: jobs to look at, at most 1000; ``SEARCHED`` with words.
        words: in lower case; each is in the job's id, task, key, note, the type and message of its error (4 KiB of it
            are looked at), or arguments of at most 4 KiB, as they are stored. Digits are found in numbers, too.
    """
    arguments = piece.arguments
    del arguments["offset"]

    def parsed(reply: Any) -> WalkedPart:
        count, looked, flat, stored, at, lined = reply
        part = WalkedPart(count, looked, rows_of(flat), records_of(stored, finder), lined=lined)
        if not at:
            return part
        ((id, score),) = rows_of([at[3], at[2]])
        place = at[1].decode("utf-8", "surrogateescape")
        return msgspec.structs.replace(part, behind=at[0], place=place, last=(score, id))

    return load("walk").bind(
        keys, parsed, names=list(names), place=place, looks=looks, queue=queue or "", task=task or "", key=key or "",
        words=list(words), most=_most(values), **arguments,
    )  # fmt: skip


class CauseFacts(msgspec.Struct, frozen=True):
    """What failures of one task, exception and place have in common; counted when each is stored.

    Attributes:
        task, kind, where: of its fingerprint: the task, the exception or signal, the innermost line of the user's code.
        line: type and first line of the error that came first.
        number: failures since ``first``, whether they are kept or not.
        lost: whether the newest one is quarantined.
        newest: its newest failures that have not been retried or deleted since, the last one first; some of 20.
    """

    id: str
    task: str
    kind: str
    where: str
    line: str
    number: int
    first: int
    last: int
    lost: bool
    newest: list[Record]


class CausesFound(msgspec.Struct, frozen=True):
    count: int
    causes: list[CauseFacts]


def read_causes(
    keys: Keys, task: str = "", *, by: str = "last", limit: int = 100, each: int = 20, finder: Finder | None = None
) -> Call[CausesFound]:
    """Causes of failures, of at most 1,000 that the store keeps for a month: those with the newest failure first, or
    ``by`` ``number`` of failures. ``each``: failures of each that are read, of 200 in all.
    """

    def parsed(reply: Any) -> CausesFound:
        count, rows, stored = reply
        records = iter(records_of(stored, finder))
        return CausesFound(count, [_cause_of(row, [next(records) for _ in range(row[2])]) for row in rows])

    return load("causes_read").bind(keys, parsed, task=task, by=by, limit=limit, each=each, reads=200, most=LISTED_ARGS)


def _cause_of(row: Any, records: list[Record | None]) -> CauseFacts:
    name, flat, _ = row
    f = {text_of(flat[n]): flat[n + 1].decode("utf-8", "surrogateescape") for n in range(0, len(flat), 2)}
    newest = [one for one in records if one is not None and one.state in (State.FAILED, State.QUARANTINED)]
    return CauseFacts(
        text_of(name), f.get("task", ""), f.get("kind", ""), f.get("where", ""), f.get("line", ""), int(f["number"]),
        int(f.get("first", 0)), int(f.get("last", 0)), f.get("state") == "quarantined", newest,
    )  # fmt: skip
