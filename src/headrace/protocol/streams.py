"""The streams of acts, events and deaths of workers: add an entry, read a piece. Scripts write what they cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from headrace.protocol.keys import Keys
from headrace.protocol.script import Call, by_turns, load, text_pairs

StreamName = Literal["acts", "events"]

# Seconds for which a stream stays after its newest entry.
KEPT: dict[StreamName, int] = {"acts": 365 * 86400, "events": 7 * 86400}
# Entries that one call looks at for some kinds only: for seven milliseconds of the server.
LOOK = 2000


class StreamPiece(msgspec.Struct, frozen=True):
    """A piece of a stream.

    Attributes:
        count: entries that the stream holds.
        rows: ids with their fields.
        last: the last entry that was looked at; empty when there are no more.
        newest: the newest entry of the stream; empty for an empty one.
    """

    count: int
    rows: list[tuple[str, dict[str, str]]]
    last: str
    newest: str


def tell(keys: Keys, stream: StreamName, request: str, fields: Mapping[str, str | int]) -> Call[str]:
    """Add an entry, and have the oldest leave beyond 10,000; returns its id.

    Args:
        request: names this request: the same again, after a lost reply, adds nothing.

    Cost: one round trip.
    """
    flat = by_turns(fields)
    return load("tell").bind(keys, bytes.decode, line=stream, keep=KEPT[stream], request=request, fields=flat)


def told(
    keys: Keys,
    stream: StreamName | Literal["deaths"],
    limit: int,
    after: str = "",
    *,
    desc: bool = True,
    kinds: Sequence[str] = (),
) -> Call[StreamPiece]:
    """A piece of a stream, by time.

    Args:
        limit: at most 1000; 0: only where the stream ends.
        after: id of the last entry seen.
        kinds: only entries of these kinds: a call looks at 2,000 entries for them.

    Cost: one round trip, O(entries looked at).
    """
    return load("told").bind(
        keys, _told, line=stream, after=after, limit=limit, look=LOOK, desc=int(desc), kinds=list(kinds)
    )


def _told(reply: Any) -> StreamPiece:
    count, rows, last, newest = reply
    found = [(id.decode(), text_pairs(fields)) for id, fields in rows]
    return StreamPiece(count, found, last.decode(), newest.decode())
