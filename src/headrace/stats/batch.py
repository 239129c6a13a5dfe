"""A batch of counts on its way to the server, and its bytes."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from headrace.protocol import stats_calls as protocol
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call
from headrace.protocol.stats_calls import Applied
from headrace.stats.histogram import middle_of
from headrace.stats.labels import MARK, field_of, label_of
from headrace.stats.resolutions import instant, layout_of
from headrace.stats.rows import Row, pieces

# Rows that one message of a line holds.
LINE_ROWS = 500


class Batch:
    """What one flush sends.

    Attributes:
        sender: the buffer's name.
        number: which of its batches this is.
        rows: the counts.
        calls: how many calls of ``add`` and ``observe`` made them.
        doubted: senders of messages that may be in a broker's queue although it did not say so.
        confirmed: senders of messages that it did confirm. They are not sent again when another one is: a full queue
            would refuse them, and what was refused is merged into the next batch.
    """

    def __init__(self, sender: str, number: int, rows: list[Row], calls: int) -> None:
        self.sender = sender
        self.number = number
        self.rows = rows
        self.calls = calls
        self.doubted: set[str] = set()
        self.confirmed: set[str] = set()
        self._made: list[Call[Applied]] | None = None

    def writes(self, keys: Keys, window: int = protocol.WINDOW) -> list[Call[Applied]]:
        """The calls that add all of it to the buckets; made once, so that a repetition says the very same.

        Each has a sender of its own: were one of several refused, those after it must not hide it.
        """
        if self._made is None:
            self._made = [
                protocol.add(keys, f"{self.sender}.{n}", self.number, piece, window)
                for n, piece in enumerate(pieces(self.rows))
            ]
        return self._made

    def messages(self) -> list[tuple[str, list[Row]]]:
        """The rows in portions for a line of batches, each with its sender."""
        return [
            (f"{self.sender}.{n}", self.rows[first : first + LINE_ROWS])
            for n, first in enumerate(range(0, len(self.rows), LINE_ROWS))
        ]


def encode(rows: list[Row]) -> bytes:
    """Rows as one message."""
    return msgspec.msgpack.encode(
        # As text: a sum may have more than 64 bits.
        [(row.layout.text, row.label, row.at, {field: str(n) for field, n in row.counts.items()}) for row in rows]
    )


def decode(message: bytes) -> list[Row]:
    """The rows of a message.

    Raises:
        msgspec.MsgspecError, OptionsError, ValueError: it is not what :func:`encode` makes.
    """
    found = msgspec.msgpack.decode(message, type=list[tuple[str, str, int, dict[str, str]]])
    for _, _, _, counts in found:
        for field in counts:
            _check(field)
    return [
        Row(layout_of(layout), label_of(label), instant(at), {field: int(n) for field, n in counts.items()})
        for layout, label, at, counts in found
    ]


@lru_cache(4096)
def _check(field: str) -> None:
    """Refuse a field that could not be stored, or not be read once it is."""
    name, mark, bucket = field.partition(MARK)
    field_of(name)
    if mark:
        middle_of(bucket)
