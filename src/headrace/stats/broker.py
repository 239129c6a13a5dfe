"""The line of batches over a message broker (RabbitMQ): one connection of this process, and what is sent over it.

Owns the connection: made when it is first needed, thrown away at any fault. A batch is known to the broker when that
has confirmed it; one that it did not confirm is sent again with its number, and whoever takes it from the queue knows
a repetition by that (``stats_take``). Needs the ``amqp`` extra.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Any, TypeVar
from urllib.parse import urlsplit

from headrace.errors import BrokerUnavailable, HeadraceError, MissingExtra, SettingsError
from headrace.settings import Settings, hidden_url, microseconds
from headrace.stats.batch import Batch, encode
from headrace.stats.rows import Row

T = TypeVar("T")

# What a forked child inherited: closed, or collected, it would shut the socket down under its parent.
_inherited: list[Any] = []


def check(settings: Settings) -> str:
    """The broker's URL.

    Raises:
        SettingsError: there is none, or it is none of AMQP.
        MissingExtra: the extra is not installed.
    """
    url = settings.stats_broker
    if url is None:
        raise SettingsError(
            "stats='amqp' needs stats_broker (HEADRACE_STATS_BROKER), the URL of a RabbitMQ such as amqp://host"
        )
    if not _is_of_amqp(url):
        raise SettingsError("stats_broker must be a URL such as amqp://user:password@host/vhost, or amqps://...")
    try:
        # Now, though nothing connects yet: at the end of the interpreter nothing can be imported any more.
        for name in ("kombu.transport.pyamqp", "kombu.exceptions", "amqp.exceptions"):
            _driver(name)
    except ImportError:
        raise MissingExtra("stats='amqp' needs kombu: pip install 'headrace[amqp]'") from None
    return url


def _is_of_amqp(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("amqp", "amqps") and parts.port != 0
    except ValueError:
        # What should be the port is no number, or what should be the host no name.
        return False


def _driver(name: str = "kombu") -> Any:
    # By name, as it has no types.
    return import_module(name)


class Broker:
    """A queue of batches, and this process's connection to it. Threads may share it, one at a time uses it.

    Attributes:
        queue: its name.
    """

    def __init__(self, settings: Settings) -> None:
        """Make one; nothing connects yet.

        Raises:
            SettingsError, MissingExtra: as :func:`check`.
        """
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
        """Line a batch up; returns the rows that a full queue did not take.

        Raises:
            BrokerUnavailable: some of it may be in the queue: it may be sent again, as it is.

        Cost: a round trip to the broker for each 500 rows.
        """
        left: list[Row] = []
        for sender, rows in batch.messages():
            if sender not in batch.confirmed and not self._again(partial(self._publish, batch, sender, rows)):
                left += rows
        return left

    def waiting(self) -> int:
        """Batches in the queue that nobody has taken yet.

        Raises:
            BrokerUnavailable: it does not answer.

        Cost: one round trip to the broker.
        """
        return self._again(lambda: self.declared(self.open()))

    def close(self) -> None:
        """Close the connection; it may be used again."""
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
        """Declare the queue; how many batches nobody has taken."""
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
        """Throw the connection away: what it owes must not answer another question.

        Without a farewell, whose answer a broker that hangs, or that has no memory left, would owe too.
        """
        self._connection = self._channel = None
        while self._made:
            with suppress(Exception):
                self._made.pop().collect()

    def _collect_all_of(self, transport: Any) -> None:
        """Remember what is opened: the driver leaves the socket of a refused login to the garbage collector."""
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
        """Whatever goes wrong with the connection ends it, and is told in words.

        Raises:
            BrokerUnavailable: for every fault of the broker or the way there.
        """
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
        """Do it over a new connection once more: one that was idle may be gone without a word."""
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
        """Whether the broker took it."""
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
