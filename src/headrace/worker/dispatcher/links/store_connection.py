"""A dispatcher's connection to the store, used without waiting: send, go on, read when the socket says so.

Owns one connection and what is half sent or half read on it. A :class:`StoreConnection` that failed is thrown away,
never reused: a reply that comes late would be taken for the answer to the next question.
"""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Sequence
from typing import Any

import hiredis
from redis import exceptions as driver

from headrace.store.connection import connect, packed
from headrace.store.url import Target

# A reply that takes longer than this (seconds) ends the connection: the server is gone or the socket half-open.
REPLY_TIMEOUT = 5.0
# Bytes a second that a slow line takes at least: so much longer a large request may take.
SLOWEST = 100_000
_MORE = object()
# The socket has nothing to read, or no room to write, now.
_LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class StoreConnection:
    """One connection with at most one request in flight. After :meth:`ready` no method waits.

    Attributes:
        deadline: monotonic time at which the awaited reply is overdue; infinite when none is awaited.
        trips: requests sent.
        backlog: what the socket had no room for; :meth:`flush` sends it.
    """

    def __init__(self, target: Target, timeout: float) -> None:
        """Connect. Waits, for ``timeout`` seconds at each step of it.

        Raises:
            redis.exceptions.RedisError, OSError: it did not work.
        """
        self._connection: Any = connect(target, timeout)
        # redis-py makes the connection (credentials, TLS); replies are read here. Its own reading sets time-outs and
        # builds messages for errors that do not come, which is half of a worker's delay between a reply and its job.
        self._sock: Any = self._connection._sock  # noqa: SLF001 - redis-py offers no other way to wait for a reply
        parse_error = self._connection._parser.parse_error  # noqa: SLF001 - one reading of errors for all connections
        self._reader = hiredis.Reader(replyError=parse_error, notEnoughData=_MORE)
        self._expected = 0
        self._replies: list[Any] = []
        self.deadline = math.inf
        self.trips = 0
        self.backlog = bytearray()

    def fileno(self) -> int:
        number: int = self._sock.fileno()
        return number

    @property
    def busy(self) -> bool:
        return self._expected > 0

    def ask(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands and wait for their replies; only before :meth:`ready`. Cost: one round trip.

        Raises:
            redis.exceptions.RedisError, OSError: the connection is gone, or the server refused one of the commands.
        """
        self._sock.sendall(b"".join(packed(commands)))
        replies: list[Any] = []
        while len(replies) < len(commands):
            reply = self._reader.gets()
            if reply is _MORE:
                self._feed()
            elif isinstance(reply, Exception):
                raise reply
            else:
                replies.append(reply)
        return replies

    def ready(self) -> None:
        """From now on the connection is used without waiting."""
        self._sock.setblocking(False)

    def send(self, commands: Sequence[Sequence[Any]], patience: float) -> None:
        """Send commands; their replies are due ``patience`` seconds after a slow line has taken them.

        Raises OSError: the connection is gone.
        """
        before = self.deadline if self._expected else 0.0
        self._expected += len(commands)
        self.trips += 1
        for piece in packed(commands):
            self.backlog += piece
        # What the system has taken to send may not have gone yet, and nothing tells of that.
        self.deadline = max(before, time.monotonic() + patience + len(self.backlog) / SLOWEST)
        self.flush()

    def flush(self) -> None:
        """Send on what the socket had no room for. Raises OSError: the connection is gone."""
        try:
            while self.backlog:
                # In place: what is left of a large batch of results must not be copied for each piece that goes.
                del self.backlog[: self._sock.send(self.backlog)]
        except _LATER:
            return

    def receive(self) -> list[Any] | None:
        """The replies to everything sent, None before the last has arrived; an error reply is the exception it is.

        Raises:
            redis.exceptions.ConnectionError, OSError: the connection is gone.
        """
        while len(self._replies) < self._expected:
            reply = self._reader.gets()
            if reply is not _MORE:
                self._replies.append(reply)
            elif not self._feed():
                return None
        replies, self._replies, self._expected, self.deadline = self._replies, [], 0, math.inf
        return replies

    def heard(self) -> list[Any]:
        """What has arrived on a subscription: lists that begin with a kind, such as ``message``, or an error.

        Raises:
            redis.exceptions.ConnectionError, OSError: the connection is gone.
        """
        while self._feed():
            pass
        messages: list[Any] = []
        while (message := self._reader.gets()) is not _MORE:
            messages.append(message)
            if self._expected and (isinstance(message, Exception) or message[0] != b"message"):
                self._expected -= 1
        if not self._expected:
            self.deadline = math.inf
        return messages

    def _feed(self) -> bool:
        """Read what is there; False when nothing is."""
        try:
            data = self._sock.recv(1 << 16)
        except _LATER:
            return False
        if not data:
            raise driver.ConnectionError("the server closed the connection")
        self._reader.feed(data)
        return True

    def close(self) -> None:
        self._connection.disconnect()
