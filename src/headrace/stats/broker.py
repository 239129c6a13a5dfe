"""The line of batches, from its writers to the buckets: over a message broker (RabbitMQ) or in the store.

A batch is added exactly once. In the store, leaving the line and being counted is one script, so any number of
consumers may run. With the broker, a batch that the broker did not confirm is sent again with its number. It leaves the
queue only when it was counted (the acknowledgement comes last). A batch that comes again, because its sender got no
answer or its consumer died, is known by its sender and number (``stats_take``). For that a sender's batches must come
in their order: of several consumers, the broker serves one, and the others stand by.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from headrace.clock import monotonic
from headrace.errors import BrokerUnavailable, HeadraceError, MissingExtra, SettingsError
from headrace.protocol import stats_calls as protocol
from headrace.protocol.stats_calls import Span
from headrace.settings import Settings, hidden_url, microseconds
from headrace.stats.buffer import LINE_ROWS, Batch, Row, decode, encode, spread
from headrace.store.client import Client

T = TypeVar("T")

# What a forked child inherited: closed, or collected, it would shut the socket down under its parent.
_inherited: list[Any] = []


def check(settings: Settings) -> str:
    """The broker's URL. Raises SettingsError, MissingExtra: there is none, or the extra is not installed."""
    url = settings.stats_broker
    if url is None:
        raise SettingsError(
            "stats='amqp' needs stats_broker (HEADRACE_STATS_BROKER), the URL of a RabbitMQ such as amqp://host"
        )
    fits = False
    with suppress(ValueError):
        # Raised where the port is not a number, or the host not a name.
        parts = urlsplit(url)
        fits = parts.scheme in ("amqp", "amqps") and parts.port != 0
    if not fits:
        raise SettingsError("stats_broker must be a URL such as amqp://user:password@host/vhost, or amqps://...")
    try:
        # Now, though nothing connects yet: at the end of the interpreter nothing can be imported any more.
        for name in ("kombu.transport.pyamqp", "kombu.exceptions", "amqp.exceptions"):
            _driver(name)
    except ImportError:
        raise MissingExtra("stats='amqp' needs kombu: pip install 'headrace[amqp]'") from None
    return url


def _driver(name: str = "kombu") -> Any:
    # By name, as it has no types.
    return import_module(name)


class Broker:
    """A queue of batches, and the connection to it, thrown away at any fault. One thread at a time uses it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.queue = f"headrace.{settings.namespace}.stats"
        self._url = check(settings)
        self._shown = hidden_url(self._url)
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._connection: Any = None
        self._channel: Any = None
        self._made: list[Any] = []

    def send(self, batch: Batch) -> list[Row]:
        """Line a batch up; returns the rows that a full queue did not take. Raises BrokerUnavailable: some of it may be
        in the queue: it may be sent again, as it is. Cost: a round trip to the broker for each 500 rows.
        """
        left: list[Row] = []
        for sender, rows in batch.messages():
            if sender not in batch.confirmed and not self._again(partial(self._publish, batch, sender, rows)):
                left += rows
        return left

    def waiting(self) -> int:
        """Batches in the queue that are not taken yet. Raises BrokerUnavailable: the broker does not answer."""
        return self._again(lambda: self.declared(self.open()))

    def close(self) -> None:
        with self.mine():
            with suppress(Exception):
                if self._connection is not None:
                    self._connection.release()
            self.drop()

    def open(self) -> Any:
        """The channel, with the queue declared; confirms what is published."""
        if self._channel is None:
            timeout = self.settings.timeout
            self._connection = _driver().Connection(
                # Its own protocol implementation: whichever else is installed may not confirm.
                f"py{self._url}" if self._url.startswith("amqp:") else self._url,
                heartbeat=0,
                connect_timeout=timeout,
                transport_options={"confirm_publish": True, "read_timeout": timeout, "write_timeout": timeout},
            )
            self._collect_all_of(self._connection.transport)
            self._connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, interval_max=0)
            self._channel = self._connection.channel()
            self.declared(self._channel, passive=False)
        return self._channel

    def declared(self, channel: Any, *, passive: bool = True) -> int:
        settings = self.settings
        arguments = {
            "x-max-length": settings.stats_stream_max,
            "x-overflow": "reject-publish" if settings.stats_overflow == "block" else "drop-head",
            # One consumer at a time, the others stand by: a sender's batches must be counted in their order.
            "x-single-active-consumer": True,
        }
        found = channel.queue_declare(
            self.queue, passive=passive, durable=True, auto_delete=False, arguments=None if passive else arguments
        )
        return int(found.message_count)

    def drain(self, seconds: float) -> bool:
        """Let what comes over the connection be delivered; False when nothing came in that time."""
        try:
            self._connection.drain_events(timeout=seconds)
        except TimeoutError:
            return False
        return True

    def drop(self) -> None:
        """Throw the connection away without a farewell, whose answer a broker that hangs would owe, too."""
        self._connection = self._channel = None
        while self._made:
            with suppress(Exception):
                self._made.pop().collect()

    def _collect_all_of(self, transport: Any) -> None:
        make = transport.Connection

        def remembered(**options: Any) -> Any:
            self._made.append(make(**options))
            return self._made[-1]

        transport.Connection = remembered

    @contextmanager
    def mine(self) -> Generator[None]:
        """The lock; and in a forked child, nothing of its parent's."""
        if self._pid != os.getpid():
            _inherited.append((self._connection, self._channel, self._made))
            self._begin()
        with self._lock:
            yield

    @contextmanager
    def faults(self) -> Generator[None]:
        """What goes wrong with the connection ends it, and is raised as BrokerUnavailable."""
        protocol, driver = _driver("amqp.exceptions"), _driver("kombu.exceptions")
        try:
            yield
        except HeadraceError:
            raise
        except (protocol.AMQPError, driver.KombuError, OSError, ValueError) as error:
            self.drop()
            raise BrokerUnavailable(self._said(error)) from error
        except BaseException:
            self.drop()
            raise

    def _said(self, error: BaseException) -> str:
        code, text = getattr(error, "reply_code", 0), str(error) or type(error).__name__
        if code == 406:
            return (
                f"the queue {self.queue} of {self._shown} was made with another stats_stream_max or stats_overflow: "
                f"give all programs the same, or delete it when it is empty (rabbitmqctl delete_queue {self.queue})"
            )
        if code in (403, 530):
            return f"{self._shown} refuses: {text}; check user, password and virtual host in stats_broker"
        return f"{self._shown} does not answer: {text}; counts wait until it does"

    def _again(self, action: Callable[[], T]) -> T:
        with self.mine():
            fresh = self._channel is None
            try:
                with self.faults():
                    return action()
            except BrokerUnavailable:
                if fresh:
                    raise
            with self.faults():
                return action()

    def _publish(self, batch: Batch, sender: str, rows: list[Row]) -> bool:
        channel = self.open()
        doubt = sender in batch.doubted
        batch.doubted.add(sender)
        try:
            _driver().Producer(channel).publish(
                encode(rows),
                exchange="",
                routing_key=self.queue,
                headers={"sender": sender, "number": batch.number, "at": microseconds(time.time())},
                serializer=None,
                content_type="application/msgpack",
                content_encoding="binary",
                delivery_mode=2,
                # A queue that was deleted since it was declared must not swallow it.
                mandatory=True,
                confirm_timeout=self.settings.timeout,
            )
        except _driver("amqp.exceptions").MessageNacked:
            if doubt:
                raise BrokerUnavailable(
                    f"the queue {self.queue} is full, and a batch may be in it that was not confirmed: it is sent again"
                ) from None
            batch.doubted.remove(sender)
            return False
        batch.confirmed.add(sender)
        return True


log = logging.getLogger("headrace.stats")

# Batches that one round trip brings.
PEEK = 500


class Taken(msgspec.Struct, frozen=True):
    """What one step did, and what it saw before.

    Attributes:
        lag: seconds since the oldest batch in the line was sent; 0 when there was none.
        lost: batches that a full line pushed out, so far.
    """

    batches: int
    waiting: int
    lag: float
    lost: int


class Consumer:
    def __init__(self, client: Client) -> None:
        self._client = client

    def step(self) -> Taken:
        """Add the oldest batches to the buckets, as many as one script may. Raises StoreUnavailable, StoreFull: the
        next step finds out whether they were added. Cost: two round trips, one when the line is empty.
        """
        keys = self._client.keys
        line = self._client.run(protocol.peek(keys, PEEK))
        lag = max(0, line.now - line.oldest) / 1e6 if line.oldest else 0.0
        if not line.batches:
            return Taken(0, line.waiting, lag, line.lost)
        rows, count = _merge(line.batches)
        first, last = line.batches[0][0], line.batches[count - 1][0]
        applied = self._client.run(protocol.consume(keys, first, last, spread(rows)))
        if applied.refused:
            log.warning("%d counters were refused, such as %s", len(applied.refused), applied.refused[0])
        # Gone: another consumer was quicker, or a lost reply hid that it was us.
        return Taken(count if applied.word == "ok" else 0, line.waiting, lag, line.lost)

    def close(self) -> None:
        """It holds nothing. Closing twice is fine."""


def _merge(batches: list[tuple[str, bytes]]) -> tuple[list[Row], int]:
    rows: list[Row] = []
    for count, (id, message) in enumerate(batches, 1):
        try:
            rows += decode(message)
        except (msgspec.MsgspecError, HeadraceError, ValueError) as error:
            # An unreadable one must not stop those behind it.
            log.warning("batch %s cannot be read and was skipped: %s", id, error)
        if len(rows) >= LINE_ROWS:
            return rows, count
    return rows, len(batches)


# Seconds that a step waits for what the broker sends, if it has something, and for more once something came.
PATIENCE = 0.5
MORE = 0.02
# The largest integer that a script's numbers hold.
_EXACT = 1 << 53


class _Headers(msgspec.Struct, frozen=True):
    sender: Annotated[str, Meta(min_length=1)]
    number: Annotated[int, Meta(ge=1, le=_EXACT)]
    at: Annotated[int, Meta(ge=0, le=_EXACT)]


class _Delivery(msgspec.Struct, frozen=True):
    """A message that the broker brought; without headers it holds no batch."""

    tag: int
    headers: _Headers | None
    rows: list[Row]


class BrokerConsumer:
    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._broker = Broker(settings)
        self._drops = settings.stats_overflow == "drop_oldest"
        self._channel: Any = None
        # Delivered and not yet acknowledged; they belong to the channel that they came over.
        self._held: deque[_Delivery] = deque()

    def step(self) -> Taken:
        """Add the oldest batches to the buckets, as many as one script may. Raises BrokerUnavailable, StoreUnavailable,
        StoreFull: they come again, and are added once. Cost: one round trip to the store, two to the broker.
        """
        with self._broker.mine(), self._broker.faults():
            waiting = self._gather()
            if not self._held:
                return Taken(0, waiting, 0.0, self._lost())
            return self._take(waiting)

    def close(self) -> None:
        self._broker.close()

    def _gather(self) -> int:
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
            took = self._client.run(
                protocol.take(self._client.keys, spans, counts, upto=max(sent), lost=lost if self._drops else None)
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
        taken: list[_Delivery] = []
        count = 0
        for one in self._held:
            taken.append(one)
            count += len(one.rows)
            if count >= LINE_ROWS:
                break
        return taken

    def _lost(self) -> int:
        return self._client.run(protocol.peek(self._client.keys)).lost if self._drops else 0


def _read(message: Any) -> _Delivery:
    try:
        headers = msgspec.convert(message.headers, _Headers)
        return _Delivery(message.delivery_tag, headers, decode(bytes(message.body)))
    except (msgspec.MsgspecError, HeadraceError, ValueError, TypeError) as error:
        # An unreadable one must not stop those behind it.
        # Of its headers no value is told: those of other programs may hold secrets.
        log.warning(
            "a batch cannot be read and was skipped: %s; its headers: %.200s", error, list(message.headers or ())
        )
        return _Delivery(message.delivery_tag, None, [])


def _new(taken: Iterable[_Delivery], known: Mapping[str, int]) -> list[tuple[_Headers, list[Row]]]:
    last = dict(known)
    found: list[tuple[_Headers, list[Row]]] = []
    for one in taken:
        if one.headers and one.headers.number > last.get(one.headers.sender, 0):
            last[one.headers.sender] = one.headers.number
            found.append((one.headers, one.rows))
    return found


def _spans(new: Iterable[_Headers]) -> tuple[list[Span], int]:
    spans: dict[str, Span] = {}
    lost = 0
    for headers in new:
        sender, number = headers.sender, headers.number
        span = spans.get(sender)
        if span is not None and sender.endswith(".0"):
            lost += number - span.last - 1
        spans[sender] = Span(sender, number if span is None else span.first, number)
    return list(spans.values()), lost
