"""From what was counted to what is stored: each row spread over its groups and resolutions, and merged again.

Pure. A row is one label's counts in one piece of time; spread, it is a bucket for each level of the label, each
resolution and each group of each field. Rows that share buckets are merged here, so that the server adds once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from headrace.protocol.stats_calls import Counts
from headrace.stats.labels import groups, levels
from headrace.stats.resolutions import Resolutions

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
    """Counts by field with what they add to the groups. A field that is given and is a group has the sum of both."""
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
        """Add a row to every bucket that it belongs to."""
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
    """All buckets that the rows add to."""
    sheet = _Sheet()
    for row in rows:
        sheet.add(row)
    return sheet.counts()


def pieces(rows: Iterable[Row]) -> Iterator[Counts]:
    """The same in pieces of some ``MOST`` counters.

    A count is in one piece with everything that it adds to: all its groups and resolutions. So between two pieces the
    buckets agree with each other, and a total that subtracts fine ones from a coarse one is that of what was written.
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
    """A row in parts of few enough fields for one piece."""
    most = max(1, MOST // (len(levels(row.label)) * len(row.layout.levels)))
    if len(row.counts) <= most:
        yield row
        return
    items = iter(row.counts.items())
    while part := dict(islice(items, most)):
        yield row._replace(counts=part)
