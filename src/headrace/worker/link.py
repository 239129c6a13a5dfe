"""A dispatcher's connection to the store, used without waiting: send, go on, read when the socket says so.

Owns one connection and its time-outs. A :class:`Link` that failed is thrown away, never reused: a reply that comes late
would be taken for the answer to the next question.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import hiredis
from redis import exceptions as driver

from headrace.connection import connect, packed
from headrace.script import Script
from headrace.url import Target

# A reply that takes longer than this (seconds) ends the connection: the server is gone or the socket half-open.
REPLY_TIMEOUT = 5.0
_MORE = object()


class Link:
    """One connection with at most one request in flight.

    Attributes:
        deadline: monotonic time at which the awaited reply is overdue; 0 when none is awaited.
        trips: requests sent.
    """

    def __init__(self, target: Target, scripts: Sequence[Script] = ()) -> None:
        """Connect, and make the scripts known to the server.

        Raises:
            redis.exceptions.RedisError, OSError: it did not work.
        """
        self._connection: Any = connect(target, REPLY_TIMEOUT)
        # redis-py makes the connection (credentials, TLS); replies are read here. Its own reading sets time-outs and
        # builds messages for errors that do not come, which is half of a worker's delay between a reply and its job.
        self._sock: Any = self._connection._sock  # noqa: SLF001 - redis-py offers no other way to wait for a reply
        parse_error = self._connection._parser.parse_error  # noqa: SLF001 - one reading of errors for all connections
        self._reader = hiredis.Reader(replyError=parse_error, notEnoughData=_MORE)
        self._expected = 0
        self._id = 0
        self.deadline = 0.0
        self.trips = 0
        self.load(scripts)

    def fileno(self) -> int:
        number: int = self._sock.fileno()
        return number

    @property
    def busy(self) -> bool:
        return self._expected > 0

    @property
    def id(self) -> int:
        """The server's number of this connection. Known only after :meth:`identify`."""
        return self._id

    def identify(self) -> None:
        """Learn the connection's number. Waits. Cost: one round trip."""
        self.send([("CLIENT", "ID")])
        self._id = self.receive()[0]

    def load(self, scripts: Sequence[Script]) -> None:
        """Make scripts known to the server. Waits. Cost: one round trip."""
        if scripts:
            self.send([("SCRIPT", "LOAD", script.text) for script in scripts])
            self.receive()

    def send(self, commands: Sequence[Sequence[Any]], patience: float = REPLY_TIMEOUT) -> None:
        """Send commands; their replies are due within ``patience`` seconds.

        Raises:
            redis.exceptions.ConnectionError: the connection is gone.
        """
        connection = self._connection
        connection.send_packed_command(packed(commands), check_health=False)
        self._expected += len(commands)
        self.deadline = time.monotonic() + patience
        self.trips += 1

    def receive(self) -> list[Any]:
        """The replies to everything sent; an error reply is returned as the exception it is.

        Raises:
            redis.exceptions.ConnectionError, redis.exceptions.TimeoutError: the connection is gone.
        """
        replies: list[Any] = []
        while self._expected:
            replies.append(self._reply())
            self._expected -= 1
        self.deadline = 0.0
        return replies

    def heard(self) -> list[Any]:
        """All messages that the server pushed (a subscription's) and that have arrived, in one reading.

        Raises:
            redis.exceptions.ConnectionError, OSError: the connection is gone.
        """
        self._feed()
        messages: list[Any] = []
        while (message := self._reader.gets()) is not _MORE:
            messages.append(message)
        return messages

    def _reply(self) -> Any:
        while (reply := self._reader.gets()) is _MORE:
            self._feed()
        return reply

    def _feed(self) -> None:
        data = self._sock.recv(1 << 16)
        if not data:
            raise driver.ConnectionError("the server closed the connection")
        self._reader.feed(data)

    def close(self) -> None:
        self._connection.disconnect()
