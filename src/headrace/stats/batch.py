"""A batch of counts on its way to the server, and its bytes."""

from __future__ import annotations

import msgspec

from headrace.protocol import stats_calls as protocol
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call
from headrace.protocol.stats_calls import Applied
from headrace.stats.labels import label_of
from headrace.stats.resolutions import layout_of
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
    """

    def __init__(self, sender: str, number: int, rows: list[Row], calls: int) -> None:
        self.sender = sender
        self.number = number
        self.rows = rows
        self.calls = calls
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
    return [
        Row(layout_of(layout), label_of(label), at, {field: int(n) for field, n in counts.items()})
        for layout, label, at, counts in found
    ]
