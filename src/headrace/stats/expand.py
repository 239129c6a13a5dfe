"""From what was counted to what is stored: each row spread over its groups and resolutions, and merged again.

Pure. A row is one label's counts in one piece of time; spread, it is a bucket for each level of the label, each
resolution and each group of each field. Rows that share buckets are merged here, so that the server adds once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headrace.protocol.stats import Counts
from headrace.stats.labels import groups, levels, split
from headrace.stats.times import Layout

# Counters that one script adds to: others must be served in between.
MOST = 2000
_NONE: dict[str, dict[str, int]] = {}


class Row(NamedTuple):
    """Counts of one label in one piece of time.

    Attributes:
        layout: the resolutions that they go to.
        label: normalised.
        at: when the piece begins, seconds since 1970.
        counts: by field, or by bucket of a histogram.
    """

    layout: Layout
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


def spread(rows: Iterable[Row]) -> Counts:
    """All buckets that the rows add to."""
    buckets: dict[tuple[str, int], dict[str, dict[str, int]]] = {}
    index: dict[str, dict[str, int]] = {}
    for layout, label, at, counts in rows:
        fields = grouped(counts)
        dates = [(level.cut.date(at), level.ends(at)) for level in layout.levels]
        for part in levels(label):
            for date in dates:
                held = buckets.setdefault(date, {}).setdefault(part, {})
                for field, n in fields.items():
                    held[field] = held.get(field, 0) + n
            if part:
                parent, last = split(part)
                ends = index.setdefault(parent, {})
                ends[last] = max(ends.get(last, 0), dates[-1][1])
    return Counts(buckets, index)


def pieces(counts: Counts) -> Iterator[Counts]:
    """The same in pieces of at most about ``MOST`` counters; the index goes with the first."""
    index, buckets, size = counts.index, dict[tuple[str, int], dict[str, dict[str, int]]](), 0
    for date, labels in counts.buckets.items():
        for label, fields in labels.items():
            items = list(fields.items())
            for first in range(0, len(items), MOST):
                part = dict(items[first : first + MOST])
                if size and size + len(part) > MOST:
                    yield Counts(buckets, index)
                    index, buckets, size = _NONE, {}, 0
                buckets.setdefault(date, {})[label] = part
                size += len(part)
    if buckets or index:
        yield Counts(buckets, index)
