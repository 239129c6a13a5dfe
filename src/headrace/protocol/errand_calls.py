"""Errands: a verb on many jobs, stored, and done in bounded pieces by workers or by the program that began it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.model.errand import Errand, JobFilter, errand_of
from headrace.model.page import Page
from headrace.protocol.keys import Keys
from headrace.protocol.replies import by_turns, text_pairs
from headrace.protocol.script import Call, load


class CountedPiece(msgspec.Struct, frozen=True):
    """Of a piece of the jobs of a state: how many are meant, how many were looked at, and the cursor; None: the end."""

    matched: int
    looked: int
    last: tuple[str, str, str] | None


def _errand(id: str, flat: Sequence[bytes]) -> Errand | None:
    fields = text_pairs(flat)
    return errand_of(id, fields) if fields else None


def begin_errand(keys: Keys, id: str, fields: dict[str, str | int]) -> Call[Errand | None]:
    """Store an errand for the jobs that are there now; the same id again changes nothing. Cost: one round trip."""
    return load("errand_begin").bind(keys, lambda reply: _errand(id, reply), id=id, fields=by_turns(fields))


def bite(keys: Keys, id: str, limit: int) -> Call[Errand | None]:
    """Do the next piece of an errand; None when it is not stored. Cost: one round trip, O(limit log n)."""
    return load("errand_bite").bind(keys, lambda reply: _errand(id, reply), id=id, limit=limit)


def stop_errand(keys: Keys, id: str) -> Call[str]:
    """Do no further piece of an errand; ``stopped``, ``ended`` or ``missing``. Cost: one round trip."""
    return load("errand_stop").bind(keys, bytes.decode, id=id)


def read_errands(keys: Keys, id: str = "", limit: int = 100, after: str = "") -> Call[Page[Errand]]:
    """Errands, the newest first, at most 100 and behind ``after``; or one. Cost: one round trip."""

    def parsed(reply: Any) -> Page[Errand]:
        count, more, rows = reply
        found = [found for one, flat in rows if (found := _errand(one.decode(), flat)) is not None]
        return Page(found, count, found[-1].id if found and more else None)

    return load("errand_read").bind(keys, parsed, id=id, after=after, limit=limit)


def count_meant(
    keys: Keys, which: JobFilter, limit: int, after: tuple[str, str, str] = ("", "", "")
) -> Call[CountedPiece]:
    """Count the jobs that a filter means among the next ``limit`` (at most 1000). Cost: one round trip, O(limit)."""

    def parsed(reply: Any) -> CountedPiece:
        score, member, lane = (part.decode("utf-8", "surrogateescape") for part in reply[2:])
        return CountedPiece(reply[0], reply[1], (score, member, lane) if member else None)

    return load("errand_count").bind(
        keys, parsed, state=which.state, queue=which.queue, task=which.task, key=which.key,
        cause=which.cause, after=after[0], member=after[1],
        lane=after[2], limit=limit,
    )  # fmt: skip
