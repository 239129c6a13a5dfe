"""The consumer of a message broker's queue: takes batches from it and adds them to the buckets, many as one.

A batch is added exactly once. It leaves the queue only when it was counted (the acknowledgement comes last), and what
comes again, because its sender was not answered or its consumer died, is known by its sender and number. For that a
sender's batches must come in their order: of several consumers, the broker serves one, and the others stand by.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from headrace.clock import monotonic
from headrace.errors import HeadraceError
from headrace.protocol import stats_calls as protocol
from headrace.protocol.stats_calls import Span
from headrace.settings import Settings, microseconds
from headrace.stats.batch import LINE_ROWS, decode
from headrace.stats.broker import Broker
from headrace.stats.consumer import PEEK, Taken
from headrace.stats.rows import Row, spread
from headrace.store.client import Client

log = logging.getLogger("headrace.stats")

# Seconds that a step waits for what the broker sends, if it has something, and for more once something came.
PATIENCE, MORE = 0.5, 0.02
# The largest integer that a script's numbers hold.
_EXACT = 1 << 53


class _Headers(msgspec.Struct, frozen=True):
    """What a batch's message says of itself; other headers are the broker's.

    Attributes:
        sender, number: which batch it is.
        at: when it was sent, microseconds.
    """

    sender: Annotated[str, Meta(min_length=1)]
    number: Annotated[int, Meta(ge=1, le=_EXACT)]
    at: Annotated[int, Meta(ge=0, le=_EXACT)]


class _Delivery(msgspec.Struct, frozen=True):
    """A message that the broker brought.

    Attributes:
        tag: by which it is acknowledged.
        headers: None where it holds no batch.
        rows: its counts.
    """

    tag: int
    headers: _Headers | None
    rows: list[Row]


class Taker:
    """One consumer of an application's queue."""

    def __init__(self, way: Client, settings: Settings) -> None:
        """Make one; nothing connects yet.

        Raises:
            SettingsError, MissingExtra: as :func:`headrace.stats.broker.check`.
        """
        self._way = way
        self._broker = Broker(settings)
        self._drops = settings.stats_overflow == "drop_oldest"
        self._channel: Any = None
        # Delivered and not yet acknowledged; they belong to the channel that they came over.
        self._held: deque[_Delivery] = deque()

    def step(self) -> Taken:
        """Add the oldest batches to the buckets, as many as one script may.

        Raises:
            BrokerUnavailable: none was taken, or all were added: whoever comes next finds out.
            StoreUnavailable, StoreFull: nothing was added, or all of it, and the batches come again.

        Cost: one round trip to the store, two to the broker.
        """
        with self._broker.mine(), self._broker.faults():
            waiting = self._gather()
            if not self._held:
                return Taken(0, waiting, 0.0, self._lost())
            return self._take(waiting)

    def close(self) -> None:
        """Give back what was not counted, and close the connection. Closing twice is fine."""
        self._broker.close()

    def _gather(self) -> int:
        """Hear what the broker sends; how many batches wait, those that are here included."""
        channel = self._broker.open()
        if channel is not self._channel:
            self._held.clear()
            channel.basic_qos(0, PEEK, False)
            channel.basic_consume(self._broker.queue, callback=self._keep)
            self._channel = channel
        waiting = self._broker.declared(channel)
        end = monotonic() + PATIENCE
        while len(self._held) < PEEK and monotonic() < end:
            pause = MORE if self._held or not waiting else max(MORE, end - monotonic())
            if not self._broker.drain(pause):
                break
        return max(waiting, self._broker.declared(channel) + len(self._held))

    def _keep(self, message: Any) -> None:
        self._held.append(_read(message))

    def _take(self, waiting: int) -> Taken:
        taken = self._some()
        sent = [one.headers.at for one in taken if one.headers] or [microseconds(time.time())]
        known: dict[str, int] = {}
        while new := _new(taken, known):
            spans, lost = _spans(headers for headers, _ in new)
            counts = spread(row for _, rows in new for row in rows)
            took = self._way.run(
                protocol.take(self._way.keys, spans, counts, upto=max(sent), lost=lost if self._drops else None)
            )
            if not took.known:
                if took.refused:
                    log.warning("%d counters were refused, such as %s", len(took.refused), took.refused[0])
                break
            known |= took.known
        self._channel.basic_ack(taken[-1].tag, multiple=True)
        for _ in taken:
            self._held.popleft()
        return Taken(len(taken), waiting, max(0.0, time.time() - min(sent) / 1e6), self._lost())

    def _some(self) -> list[_Delivery]:
        """The first messages, until they have many rows."""
        taken: list[_Delivery] = []
        count = 0
        for one in self._held:
            taken.append(one)
            count += len(one.rows)
            if count >= LINE_ROWS:
                break
        return taken

    def _lost(self) -> int:
        return self._way.run(protocol.peek(self._way.keys)).lost if self._drops else 0


def _read(message: Any) -> _Delivery:
    try:
        headers = msgspec.convert(message.headers, _Headers)
        return _Delivery(message.delivery_tag, headers, decode(bytes(message.body)))
    except (msgspec.MsgspecError, HeadraceError, ValueError, TypeError) as error:
        # One that nobody can read must not stop those behind it.
        # Of its headers no value is told: those of other programs may hold secrets.
        log.warning(
            "a batch cannot be read and was skipped: %s; its headers: %.200s", error, list(message.headers or ())
        )
        return _Delivery(message.delivery_tag, None, [])


def _new(taken: Iterable[_Delivery], known: Mapping[str, int]) -> list[tuple[_Headers, list[Row]]]:
    """The batches that were not counted, each once however often it came."""
    last = dict(known)
    found: list[tuple[_Headers, list[Row]]] = []
    for one in taken:
        if one.headers and one.headers.number > last.get(one.headers.sender, 0):
            last[one.headers.sender] = one.headers.number
            found.append((one.headers, one.rows))
    return found


def _spans(new: Iterable[_Headers]) -> tuple[list[Span], int]:
    """What is new, by sender, and how many numbers are missing between."""
    spans: dict[str, Span] = {}
    lost = 0
    for headers in new:
        sender, number = headers.sender, headers.number
        span = spans.get(sender)
        if span is not None and sender.endswith(".0"):
            lost += number - span.last - 1
        spans[sender] = Span(sender, number if span is None else span.first, number)
    return list(spans.values()), lost
