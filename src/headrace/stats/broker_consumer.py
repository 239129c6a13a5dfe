"""The consumer of a message broker's queue: takes batches from it and adds them to the buckets, many as one.

A batch is added exactly once. It leaves the queue only when it was counted (the acknowledgement comes last), and what
comes again, because its sender was not answered or its consumer died, is known by its sender and number. For that a
sender's batches must come in their order: of several consumers, the broker serves one, and the others stand by.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any

import msgspec

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
        self._held: deque[Any] = deque()

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
            channel.basic_consume(self._broker.queue, callback=self._held.append)
            self._channel = channel
        waiting = self._broker.declared(channel)
        end = time.monotonic() + PATIENCE
        while len(self._held) < PEEK and time.monotonic() < end:
            pause = MORE if self._held or not waiting else max(MORE, end - time.monotonic())
            if not self._broker.drain(pause):
                break
        return max(waiting, self._broker.declared(channel) + len(self._held))

    def _take(self, waiting: int) -> Taken:
        messages, rows = self._some()
        sent = [_sent(message) for message in messages]
        known: dict[str, int] = {}
        while True:
            spans, lost = _spans(messages, known)
            if not spans:
                break
            wanted = {id(message) for message in _new(messages, known)}
            counted = [
                row for message, part in zip(messages, rows, strict=True) if id(message) in wanted for row in part
            ]
            took = self._way.run(
                protocol.take(
                    self._way.keys, spans, spread(counted), upto=max(sent), lost=lost if self._drops else None
                )
            )
            if not took.known:
                if took.refused:
                    log.warning("%d counters were refused, such as %s", len(took.refused), took.refused[0])
                break
            known |= took.known
        self._channel.basic_ack(messages[-1].delivery_tag, multiple=True)
        for _ in messages:
            self._held.popleft()
        return Taken(len(messages), waiting, max(0.0, time.time() - min(sent) / 1e6), self._lost())

    def _some(self) -> tuple[list[Any], list[list[Row]]]:
        """The first messages, until they have many rows; and the rows of each."""
        messages: list[Any] = []
        rows: list[list[Row]] = []
        count = 0
        for message in self._held:
            messages.append(message)
            rows.append(_read(message))
            count += len(rows[-1])
            if count >= LINE_ROWS:
                break
        return messages, rows

    def _lost(self) -> int:
        return self._way.run(protocol.peek(self._way.keys)).lost if self._drops else 0


def _read(message: Any) -> list[Row]:
    try:
        return decode(bytes(message.body))
    except (msgspec.MsgspecError, HeadraceError, ValueError, TypeError) as error:
        # One that nobody can read must not stop those behind it.
        log.warning("a batch of %s cannot be read and was skipped: %s", message.headers.get("sender"), error)
        return []


def _name(message: Any) -> tuple[str, int]:
    """Sender and number; of an alien message, ones that no batch has."""
    sender, number = message.headers.get("sender"), message.headers.get("number")
    return (sender, number) if isinstance(sender, str) and isinstance(number, int) else ("", 0)


def _sent(message: Any) -> int:
    """When it was sent, microseconds; now, if it does not say."""
    at = message.headers.get("at")
    return at if isinstance(at, int) else microseconds(time.time())


def _new(messages: list[Any], known: dict[str, int]) -> list[Any]:
    """Those that were not counted, each once however often it came."""
    last = dict(known)
    found: list[Any] = []
    for message in messages:
        sender, number = _name(message)
        if sender and number > last.get(sender, 0):
            last[sender] = number
            found.append(message)
    return found


def _spans(messages: list[Any], known: dict[str, int]) -> tuple[list[Span], int]:
    """What is new, by sender, and how many numbers are missing between."""
    spans: dict[str, Span] = {}
    lost = 0
    for message in _new(messages, known):
        sender, number = _name(message)
        span = spans.get(sender)
        if span is not None and sender.endswith(".0"):
            lost += number - span.last - 1
        spans[sender] = Span(sender, number if span is None else span.first, number)
    return list(spans.values()), lost
