"""What statistics say to the store: add, send, consume, read, and the events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.protocol.keys import Keys
from headrace.protocol.script import Call, load, text_of

# Buckets that one script reads.
READ = 1000
# A sender's number outlives by far the time for which a writer repeats a batch at short intervals.
WINDOW = 3600
# A broker gives a batch again when its worker has died, however long that takes to be noticed.
BROKER_WINDOW = 86400
# A line that is not used goes away after this many seconds.
UNUSED = 7 * 86400


class Counts(msgspec.Struct, frozen=True):
    """Merged counts, ready for the buckets.

    Attributes:
        buckets: by date and end in seconds, then by label, then by field.
        index: by parent label, then by part: the end in seconds of what was counted there.
    """

    buckets: Mapping[tuple[str, int], Mapping[str, Mapping[str, int]]]
    index: Mapping[str, Mapping[str, int]]

    def packed(self) -> dict[str, list[Any]]:
        buckets = [[date, ends, _rows(labels)] for (date, ends), labels in self.buckets.items()]
        index = [
            [up, [one for part, ends in parts.items() for one in (ends, part)]] for up, parts in self.index.items()
        ]
        return {"buckets": buckets, "index": index}


def _rows(labels: Mapping[str, Mapping[str, int]]) -> list[Any]:
    rows: list[Any] = []
    for label, counts in labels.items():
        rows.append(label)
        # As text: Lua's numbers lose what is beyond 53 bits.
        rows.append([item for field, n in counts.items() for item in (field, str(n))])
    return rows


class Applied(msgspec.Struct, frozen=True):
    """What became of a batch.

    Attributes:
        word: ``ok``; ``repeated``: it had been applied, its reply was lost; ``full``: the line takes no more; ``gone``:
            another worker took the merged batches; ``known``: the event is stored already.
        refused: counters that took nothing, as ``date:label field``: full, or no numbers.
    """

    word: str
    refused: tuple[str, ...] = ()


def _applied(reply: Any) -> Applied:
    return Applied(reply[0].decode(), tuple(text_of(name) for name in reply[1]))


def add(keys: Keys, sender: str, number: int, counts: Counts, window: int = WINDOW) -> Call[Applied]:
    """Add merged counts to their buckets: all, or none when this sender's batch was applied within ``window``."""
    return load("stats_add").bind(keys, _applied, sender=sender, number=str(number), window=window, **counts.packed())


def send(
    keys: Keys, sender: str, number: int, batch: bytes, most: int, hold: bool, window: int = WINDOW
) -> Call[Applied]:
    """Line a batch up, once however often it is sent. Beyond ``most`` the oldest go; with ``hold`` it is ``full``."""
    return load("stats_send").bind(
        keys, lambda reply: Applied(reply.decode()), sender=sender, number=str(number), window=window, most=most,
        hold=int(hold), keep=UNUSED, batch=batch,
    )  # fmt: skip


class Line(msgspec.Struct, frozen=True):
    """Batches that wait to be added.

    Attributes:
        oldest: since when the first one waits, microseconds; 0 when none does.
        lost: batches that a full line pushed out.
        taken: when one was added last, microseconds; 0 when that is long ago.
        batches: ids and bytes of the first ones.
        upto: with a message broker, when the last batch was sent that was added, microseconds by its sender's clock:
            all that wait are later. 0 when none was, or long ago.
    """

    now: int
    waiting: int
    oldest: int
    lost: int
    taken: int
    batches: list[tuple[str, bytes]]
    upto: int = 0


def peek(keys: Keys, limit: int = 0) -> Call[Line]:
    """The oldest batches, and how far behind their consumer is. They stay. O(limit)."""

    def parsed(reply: Any) -> Line:
        now, waiting, oldest, lost, taken, rows, upto = reply
        since = int(oldest.partition(b"-")[0]) * 1000 if oldest else 0
        return Line(now, waiting, since, lost, taken, [(id.decode(), pair[1]) for id, pair in rows], upto)

    return load("stats_peek").bind(keys, parsed, limit=limit)


def consume(keys: Keys, first: str, last: str, counts: Counts) -> Call[Applied]:
    """Add the batches from ``first``, the oldest, to ``last`` as one, exactly once: ``gone`` if they were taken."""
    time, _, sequence = last.partition("-")
    beyond = f"{time}-{int(sequence) + 1}"
    packed = counts.packed()
    return load("stats_consume").bind(keys, _applied, first=first, beyond=beyond, keep=UNUSED, **packed)


class Span(msgspec.Struct, frozen=True):
    sender: str
    first: int
    last: int


class Took(msgspec.Struct, frozen=True):
    """What became of batches of a broker; ``known``: by sender, the last number added before: then none was added."""

    known: dict[str, int]
    refused: tuple[str, ...] = ()


def _took(reply: Any) -> Took:
    word, rows = reply
    if word == b"repeated":
        return Took({rows[n].decode(): int(rows[n + 1]) for n in range(0, len(rows), 2)})
    return Took({}, _applied(reply).refused)


def take(
    keys: Keys,
    spans: Sequence[Span],
    counts: Counts,
    *,
    upto: int,
    lost: int | None = None,
    window: int = BROKER_WINDOW,
) -> Call[Took]:
    """Add batches of a broker as one: all, or none when one was added before. ``lost``: how many the broker dropped."""
    return load("stats_take").bind(
        keys, _took, batches=[item for span in spans for item in (span.sender, span.first, span.last)],
        gaps=int(lost is not None), lost=lost or 0, upto=upto, window=window, keep=UNUSED, **counts.packed(),
    )  # fmt: skip


Held = dict[str, int]


def _whole(reply: Any) -> list[Held]:
    return [_held(row) if row else {} for row in reply]


def _held(row: bytes) -> Held:
    lines = text_of(row).split("\n")
    return dict(zip(lines[::2], map(int, lines[1::2]), strict=True))


def read(keys: Keys, names: Sequence[str], fields: Sequence[str] = ()) -> Call[list[Held]]:
    """What at most ``READ`` buckets (``date:label``) hold, all at one moment."""

    def chosen(reply: Any) -> list[Held]:
        return [{field: int(n) for field, n in zip(fields, row, strict=True) if n is not None} for row in reply]

    return load("stats_read").bind(keys, chosen if fields else _whole, names=list(names), fields=list(fields))


def children(keys: Keys, label: str, offset: int = 0, limit: int = 1000) -> Call[list[str]]:
    """The parts right below a label that hold something, the last to end first: what was counted lately."""
    return load("stats_children").bind(
        keys, lambda reply: [part.decode() for part in reply[0]],
        label=f"/{label}", offset=offset, limit=limit, dates=[],
    )  # fmt: skip


def held_below(
    keys: Keys, label: str, dates: Sequence[str], offset: int, limit: int
) -> Call[list[tuple[str, list[Held]]]]:
    """Some of the parts that :func:`children` tells, with what their buckets hold; at most ``READ`` in all."""

    def parsed(reply: Any) -> list[tuple[str, list[Held]]]:
        held, size = _whole(reply[1]), len(dates)
        return [(part.decode(), held[n * size : (n + 1) * size]) for n, part in enumerate(reply[0])]

    return load("stats_children").bind(keys, parsed, label=f"/{label}", offset=offset, limit=limit, dates=list(dates))


def event(keys: Keys, id: str, at: int, keep: int, body: bytes, counts: Counts) -> Call[Applied]:
    """Store an event and its counts, once for an id; it stays ``keep`` seconds from ``at`` (microseconds) or now."""
    return load("stats_event").bind(keys, _applied, id=id, at=at, keep=keep, body=body, **counts.packed())


def look(keys: Keys, ids: Sequence[str]) -> Call[list[bytes | None]]:
    return load("stats_look").bind(keys, list, ids=list(ids))
