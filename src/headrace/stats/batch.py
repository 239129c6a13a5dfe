"""Batches of counts on their way to the server, and their bytes. Pure.

1. :func:`spread`: from counts to buckets. A row is one label's counts in one piece of time; spread, it is a bucket for
   each level of the label, each resolution and each group of each field. Rows that share buckets are merged here, so
   that the server adds once.
2. :class:`Batch`, :func:`encode`, :func:`decode`: a batch and its form in the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import msgspec

from headrace.protocol import stats_calls as protocol
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call
from headrace.protocol.stats_calls import Applied, Counts
from headrace.stats.histogram import middle_of
from headrace.stats.resolutions import MARK, Resolutions, field_of, groups, instant, label_of, layout_of, levels

# Counters that one script adds to: others must be served in between. 2,000 took 10 ms, as much as a rate makes good.
MOST = 400


class Row(NamedTuple):
    """Counts of one label in one piece of time.

    Attributes:
        layout: the resolutions that they go to.
        label: normalised.
        at: when the piece begins, seconds since 1970.
        counts: by field, or by bucket of a histogram.
    """

    layout: Resolutions
    label: str
    at: int
    counts: dict[str, int]


def grouped(counts: dict[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for field, n in counts.items():
        for group in groups(field):
            found[group] = found.get(group, 0) + n
    return found


class _Sheet:
    """Buckets that some rows add to.

    Attributes:
        size: different counters among them.
    """

    def __init__(self) -> None:
        self.size = 0
        self._buckets: dict[tuple[str, int], dict[str, dict[str, int]]] = {}
        self._index: dict[str, dict[str, int]] = {}

    def add(self, row: Row) -> None:
        layout, label, at, counts = row
        fields = grouped(counts)
        dates = [(level.cut.date(at), level.ends(at)) for level in layout.levels]
        for part in levels(label):
            for date in dates:
                held = self._buckets.setdefault(date, {}).setdefault(part, {})
                self.size -= len(held)
                for field, n in fields.items():
                    held[field] = held.get(field, 0) + n
                self.size += len(held)
            if part:
                parent, _, last = part.rpartition("/")
                ends = self._index.setdefault(parent, {})
                ends[last] = max(ends.get(last, 0), dates[-1][1])

    def counts(self) -> Counts:
        return Counts(self._buckets, self._index)


def spread(rows: Iterable[Row]) -> Counts:
    sheet = _Sheet()
    for row in rows:
        sheet.add(row)
    return sheet.counts()


def pieces(rows: Iterable[Row]) -> Iterator[Counts]:
    """The same in pieces of some ``MOST`` counters. A count is in one piece with everything that it adds to: all its
    groups and resolutions. So between two pieces the buckets agree with each other, and a total that subtracts fine
    ones from a coarse one is that of what was written.
    """
    sheet = _Sheet()
    for row in rows:
        for part in _parts(row):
            sheet.add(part)
            if sheet.size >= MOST:
                yield sheet.counts()
                sheet = _Sheet()
    if sheet.size:
        yield sheet.counts()


def _parts(row: Row) -> Iterator[Row]:
    most = max(1, MOST // (len(levels(row.label)) * len(row.layout.levels)))
    if len(row.counts) <= most:
        yield row
        return
    items = iter(row.counts.items())
    while part := dict(islice(items, most)):
        yield row._replace(counts=part)


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
    return msgspec.msgpack.encode(
        # As text: a sum may have more than 64 bits.
        [(row.layout.text, row.label, row.at, {field: str(n) for field, n in row.counts.items()}) for row in rows]
    )


def decode(message: bytes) -> list[Row]:
    """The rows of a message. Raises msgspec.MsgspecError, OptionsError, ValueError: it is not what :func:`encode`
    makes.
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
    name, mark, bucket = field.partition(MARK)
    field_of(name)
    if mark:
        middle_of(bucket)
