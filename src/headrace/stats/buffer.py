"""The write buffer: counts of this process that are not yet stored, merged by series and piece of time.

It has no thread, no clock and no connection. Their owners (the flusher, a dispatcher's loop) send a batch within a
request of their own. A batch keeps its number, by which the server knows a repetition: a flush that fails is neither
lost nor doubled. Threads may share a buffer. A forked child begins with an empty one: its parent sends the inherited
counts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, TypeVar

import msgspec

from headrace.errors import OptionsError
from headrace.protocol import stats_calls as protocol
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call
from headrace.protocol.stats_calls import Applied, Counts
from headrace.stats.resolutions import (
    MARK,
    Resolutions,
    bucket_of,
    field_of,
    groups,
    instant,
    label_of,
    layout_of,
    levels,
    middle_of,
)
from headrace.store.surroundings import in_forks

# Counters that one script adds to: others must be served in between. 2,000 took 10 ms, as much as a rate makes good.
PIECE = 400


class Row(NamedTuple):
    """Counts of one label in one piece of time, by field or by bucket of a histogram; ``at``: when the piece begins."""

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
    """Buckets that some rows add to; ``size``: different counters among them."""

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
    """The same in pieces of some ``PIECE`` counters. A count is in one piece with everything that it adds to: all its
    groups and resolutions. So between two pieces the buckets agree with each other, and a total that subtracts fine
    ones from a coarse one is that of what was written.
    """
    sheet = _Sheet()
    for row in rows:
        for part in _parts(row):
            sheet.add(part)
            if sheet.size >= PIECE:
                yield sheet.counts()
                sheet = _Sheet()
    if sheet.size:
        yield sheet.counts()


def _parts(row: Row) -> Iterator[Row]:
    most = max(1, PIECE // (len(levels(row.label)) * len(row.layout.levels)))
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
        calls: how many calls of ``add`` and ``observe`` made the rows.
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
        """The calls that add all of it to the buckets; made once, so that a repetition says the very same. Each has a
        sender of its own: were one of several refused, those after it must not hide it.
        """
        if self._made is None:
            self._made = [
                protocol.add(keys, f"{self.sender}.{n}", self.number, piece, window)
                for n, piece in enumerate(pieces(self.rows))
            ]
        return self._made

    def messages(self) -> list[tuple[str, list[Row]]]:
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
    """The rows of a message. Raises MsgspecError, OptionsError, ValueError: :func:`encode` did not make it."""
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


# Different counters that wait at most: one call may exceed it by its own.
MOST = 200_000
# Of these, this many are dropped at a time where the oldest are to go.
DROP = 2_000
_LIMIT = 1 << 63
_LEAST = -_LIMIT

Check = Callable[[str, int], object]
F = TypeVar("F", int, float)


def check_count(field: str, n: int) -> None:
    """Raises OptionsError: the field's name cannot be used, or ``n`` is not an integer of 64 bits."""
    field_of(field)
    if type(n) is not int:
        raise OptionsError(f"field {field!r} counts in integers, not {n!r}: for durations and sizes there is observe()")
    if not _LEAST < n < _LIMIT:
        raise OptionsError(f"field {field!r} cannot count {n!r}: a counter has 64 bits")


def observed(fields: Mapping[str, float]) -> dict[str, int]:
    """Values as counts of their histograms' buckets. Raises OptionsError: a name is odd, or a value not finite."""
    return {f"{field_of(field)}{MARK}{bucket_of(value)}": 1 for field, value in named(fields).items()}


def named(fields: Mapping[str, F]) -> Mapping[str, F]:
    if not isinstance(fields, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(f"fields are a mapping, not {fields!r:.80}: write " + '{"count": 1} for a field named count')
    return fields


def check_nothing(_field: str, _n: int) -> None:
    """For counts that :func:`observed` made."""


class Full(Exception):
    """The buffer holds ``MOST`` counters, and another one was to be added; nothing was."""


class LabelledBuffer:
    """One family's way into the buffer: its layout, and a prefix of its labels.

    Attributes:
        since, until: the piece of time that ``current`` is of.
        current: counts by label as callers write it; several texts of one label lead to the same counts.
        lock: the buffer's lock, kept here too: looking it up there would take as long as the count.
    """

    def __init__(self, buffer: Buffer, layout: Resolutions, prefix: str) -> None:
        self.layout = layout
        self.prefix = prefix
        self.since = self.until = 0
        self.current: dict[str, dict[str, int]] = {}
        self.lock = buffer.lock
        self._buffer = buffer
        self._slot = layout.slot
        self._rows: dict[tuple[str, int], dict[str, int]] = {}

    def add(self, label: str, fields: Mapping[str, int], at: float, check: Check = check_count) -> int:
        """Merge counts; how many calls the buffer holds now. Each line is paid for by every count of every job: what is
        rare is done elsewhere. Raises OptionsError, Full: nothing was added.
        """
        buffer = self._buffer
        # Not acquire() and ``try``: a job's time limit may be raised between the two, and the lock would be lost.
        with self.lock:
            counts = self.current.get(label) if self.since <= at < self.until else None
            if counts is None:
                counts = self._open(label, at)
            if fields.__class__ is not dict:
                named(fields)
            for field, n in fields.items():
                if field not in counts or type(n) is not int or not _LEAST < n < _LIMIT:
                    return self._add_new(counts, fields, field, check)
                counts[field] += n
            buffer.calls = calls = buffer.calls + 1
            return calls

    def row(self, label: str, fields: Mapping[str, int], at: float, check: Check = check_count) -> Row:
        for field, n in named(fields).items():
            check(field, n)
        return Row(self.layout, self.label(label), int(at) // self._slot * self._slot, dict(fields))

    def label(self, text: str) -> str:
        return label_of(f"{self.prefix}/{label_of(text)}" if self.prefix else text)

    def drain(self) -> list[Row]:
        rows, self._rows, self.current = self._rows, {}, {}
        return [Row(self.layout, label, slot * self._slot, counts) for (label, slot), counts in rows.items() if counts]

    def oldest(self) -> int | None:
        return next((slot * self._slot for _, slot in self._rows), None)

    def drop(self) -> int:
        """Forget the row that waits longest, of those that there are; its counters. The buffer's lock is held."""
        # What callers add to from now on must not be what is forgotten.
        self.current = {}
        return len(self._rows.pop(next(iter(self._rows))))

    def put_back(self, row: Row) -> None:
        """Merge what was not taken into what has come since; the buffer's lock is held."""
        slot = row.at // self._slot
        counts = self._rows.setdefault((row.label, slot), {})
        for field, n in row.counts.items():
            counts.setdefault(field, 0)
            counts[field] += n
        self._buffer.counters += len(row.counts)

    def _open(self, label: str, at: float) -> dict[str, int]:
        slot = int(at) // self._slot
        key = self.label(label), slot
        counts = self._rows.get(key)
        if counts is None:
            if self._buffer.counters >= MOST:
                raise Full
            # One that a signal's handler made meanwhile stays, here and below.
            counts = self._rows.setdefault(key, {})
        if at >= self.until:
            # Late counts are the rare ones: they look their counts up each time.
            self.since = slot * self._slot
            self.until = (slot + 1) * self._slot
            self.current = {}
        if at >= self.since:
            self.current[label] = counts
        return counts

    def _add_new(self, counts: dict[str, int], fields: Mapping[str, int], new: str, check: Check) -> int:
        buffer = self._buffer
        for field, n in fields.items():
            if field == new:
                break
            counts[field] -= n
        for field, n in fields.items():
            check(field, n)
        if buffer.counters >= MOST and not fields.keys() <= counts.keys():
            raise Full
        for field, n in fields.items():
            if field not in counts:
                buffer.counters += 1
                counts.setdefault(field, 0)
            counts[field] += n
        buffer.calls += 1
        return buffer.calls


class Buffer:
    """Counts of one process, on their way.

    Attributes:
        lock: held for every look at what is merged; never while anything is sent.
        calls: of ``add`` and ``observe`` that are merged and not yet taken; ``counters``: different ones among them.
        lost: counters that were dropped, since too many different ones waited.
    """

    def __init__(self) -> None:
        self._lanes: dict[tuple[Resolutions, str], LabelledBuffer] = {}
        self.begin_anew()

    def begin_anew(self) -> None:
        # Re-entrant: a signal's handler may count while its thread counts.
        self.lock = threading.RLock()
        self.calls = 0
        self.counters = 0
        self.lost = 0
        self._unanswered: Batch | None = None
        self._sender = ""
        self._number = 0
        for lane in self._lanes.values():
            lane.drain()
            lane.lock = self.lock

    def lane(self, layout: Resolutions, prefix: str = "") -> LabelledBuffer:
        in_forks(self)
        with self.lock:
            return self._lanes.setdefault((layout, prefix), LabelledBuffer(self, layout, prefix))

    @property
    def held(self) -> int:
        unanswered = self._unanswered
        return self.calls + (unanswered.calls if unanswered else 0)

    @property
    def stuck(self) -> bool:
        return self._unanswered is not None

    def drop_oldest(self) -> None:
        """Drop ``DROP`` counters or a few more, of those that wait longest and are not being sent."""
        with self.lock:
            dropped = 0
            while dropped < DROP:
                lanes = {at: lane for lane in self._lanes.values() if (at := lane.oldest()) is not None}
                if not lanes:
                    break
                dropped += lanes[min(lanes)].drop()
            self.counters -= dropped
            self.lost += dropped

    def take(self) -> Batch | None:
        """What to send now: the batch that was not answered, else all that is merged. For one sender at a time."""
        if not self._lanes:
            return None
        with self.lock:
            if self._unanswered is None and self.calls:
                # First: what a signal's handler counts from here on must not look as if it were taken.
                calls, self.calls, self.counters = self.calls, 0, 0
                rows = [row for lane in self._lanes.values() for row in lane.drain()]
                if not rows:
                    # Calls without fields: there is nothing to send.
                    return None
                # The name is made here, since a fork and its parent must not share one.
                self._sender = self._sender or os.urandom(9).hex()
                self._number += 1
                self._unanswered = Batch(self._sender, self._number, rows, calls)
            return self._unanswered

    def answered(self, batch: Batch, left: list[Row] | None = None) -> None:
        """The server has taken the batch, except for the rows in ``left``: those are merged again."""
        with self.lock:
            if batch is self._unanswered:
                self._unanswered = None
                for row in left or ():
                    lane = self._lanes.get((row.layout, "")) or self.lane(row.layout)
                    lane.put_back(row)
                    self.calls += 1
