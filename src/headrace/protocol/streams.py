"""The streams of acts and events: add an entry, read a piece. The scripts that make events happen write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.protocol.keys import Keys
from headrace.protocol.replies import pairs, text_of
from headrace.protocol.script import Call, load

StreamName = Literal["acts", "events"]

# Seconds for which a stream stays after its newest entry.
KEPT: dict[StreamName, int] = {"acts": 365 * 86400, "events": 7 * 86400}
# Entries that one call looks at for some kinds only.
LOOK = 5000


@dataclass(frozen=True, slots=True)
class StreamPiece:
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
    flat = [part for pair in fields.items() for part in pair]
    return load("tell").bind(keys, bytes.decode, line=stream, keep=KEPT[stream], request=request, fields=flat)


def told(
    keys: Keys,
    stream: StreamName,
    limit: int,
    after: str = "",
    *,
    desc: bool = True,
    within: int = 0,
    kinds: Sequence[str] = (),
    now: int = 0,
) -> Call[StreamPiece]:
    """A piece of a stream, by time.

    Args:
        limit: at most 1000; 0: only where the stream ends.
        after: id of the last entry seen.
        within: only entries that are as young, microseconds, newest first; 0: of any age.
        kinds: only entries of these kinds: a call looks at 5,000 entries for them.

    Cost: one round trip, O(entries looked at).
    """
    return load("told").bind(
        keys, _told, now=now, line=stream, after=after, limit=limit, look=LOOK, desc=int(desc), within=within,
        kinds=list(kinds),
    )  # fmt: skip


def _told(reply: Any) -> StreamPiece:
    count, rows, last, newest = reply
    found = [(id.decode(), {name: text_of(value) for name, value in pairs(fields).items()}) for id, fields in rows]
    return StreamPiece(count, found, last.decode(), newest.decode())
