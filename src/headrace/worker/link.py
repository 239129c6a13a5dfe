"""A dispatcher's connection to the store, used without waiting: send, go on, read when the socket says so.

Owns one connection and its time-outs. A :class:`Link` that failed is thrown away, never reused: a reply that comes late
would be taken for the answer to the next question.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from redis import exceptions as driver

from headrace.connection import Target, connect
from headrace.script import Script

# A reply that takes longer than this (seconds) ends the connection: the server is gone or the socket half-open.
REPLY_TIMEOUT = 5.0


class Lost(Exception):
    """The connection failed or its deadline passed; make a new one."""


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
        self._expected = 0
        self._id = 0
        self.deadline = 0.0
        self.trips = 0
        self.load(scripts)

    def fileno(self) -> int:
        number: int = self._connection._sock.fileno()  # noqa: SLF001 - redis-py offers no other way to wait for a reply
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
        connection.send_packed_command(connection.pack_commands(commands), check_health=False)
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
            try:
                replies.append(self._connection.read_response())
            except driver.ResponseError as error:
                replies.append(error)
            self._expected -= 1
        self.deadline = 0.0
        return replies

    def listen(self) -> Any:
        """One message that the server pushed (a subscription's)."""
        return self._connection.read_response()

    def close(self) -> None:
        self._connection.disconnect()
