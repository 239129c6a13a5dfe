"""A look at the next jobs of one structure: which may match a search. What does not match stays in the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.protocol.index_pages import rows_of, slice_of
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call, load

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
