"""One life of the connection over which a process hears of ends: commands, their replies, and announcements.

RESP3 needs one connection for all of it. Where a proxy refuses RESP3, announcements come over a second connection.
Must not decide what is asked, or who is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import hiredis
from redis import exceptions as driver

from headrace.protocol.script import Call
from headrace.store.connection import packed
from headrace.store.raw_connection import Bell, Lost, RawConnection
from headrace.store.reach import fill, loads, missing
from headrace.store.url import Target


class EndLink:
    """A connection that is subscribed to the ends of some jobs and workflows.

    Attributes:
        subscribed: channels, as the server knows them.
        trips: requests sent.
    """

    def __init__(self, target: Target, timeout: float) -> None:
        """Connect. Each reply is waited for ``timeout`` seconds.

        Raises:
            redis.exceptions.RedisError, OSError: see ``connection.verdict``.
        """
        self.subscribed: set[str] = set()
        self.trips = 0
        self._timeout = timeout
        self._announced: list[tuple[str, str]] = []
        self._replies = self._feed = RawConnection(target, timeout)
        try:
            if _refused(self._replies.ask(("HELLO", "3"))[0]):
                self._feed = RawConnection(target, timeout)
        except BaseException:
            self.close()
            raise

    def run(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Replies to calls, in their order; an error reply is the exception that it is. Cost: one round trip."""
        replies = self.ask([call.command() for call in calls])
        if absent := missing(replies):
            scripts = loads([calls[n] for n in absent])
            answers = self.ask([*scripts, *(calls[n].command() for n in absent)])
            fill(replies, absent, answers[: len(scripts)], answers[len(scripts) :])
        return replies

    def ask(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands and wait for their replies; what is announced meanwhile is kept for :meth:`hear`."""
        self._send(self._replies, commands)
        replies: list[Any] = []
        while len(replies) < len(commands):
            if not self._is_announcement(message := self._replies.wait(), self._replies):
                replies.append(message)
        return replies

    def subscribe(self, channels: Sequence[str]) -> None:
        """Have the server announce what is published there, from now on. Cost: one round trip.

        Raises:
            redis.exceptions.RedisError: the server refuses.
        """
        self._send(self._feed, [("SUBSCRIBE", *channels)])
        self.subscribed.update(channels)
        left = len(channels)
        while left:
            message = self._feed.wait()
            if _refused(message):
                raise message
            left -= self._is_announcement(message, self._feed) and message[0] == b"subscribe"

    def unsubscribe(self, channels: Sequence[str]) -> None:
        """Have nothing announced there any more; no reply is waited for."""
        self._send(self._feed, [("UNSUBSCRIBE", *channels)])
        self.subscribed.difference_update(channels)

    def hear(self, bell: Bell, seconds: float) -> list[tuple[str, str]]:
        """Channels and what was announced on them; waits for the first, until ``seconds`` are over or the bell rings.

        Raises:
            Lost: the connection is of no use any more.
        """
        # What came together with a reply lies in a parser, where no poll would find it.
        self._receive()
        if not self._announced:
            bell.wait(self._wires(), seconds)
            self._receive()
        announced, self._announced = self._announced, []
        return announced

    def close(self) -> None:
        for wire in self._wires():
            wire.close()

    def _wires(self) -> list[RawConnection]:
        return [self._replies] if self._feed is self._replies else [self._replies, self._feed]

    def _send(self, wire: RawConnection, commands: Sequence[Sequence[Any]]) -> None:
        self.trips += 1
        wire.sock.settimeout(self._timeout)
        wire.sock.sendall(b"".join(packed(commands)))

    def _receive(self) -> None:
        for wire in self._wires():
            wire.sock.settimeout(0)
            for message in wire.receive():
                if not self._is_announcement(message, wire):
                    raise Lost(f"the server said what it was not asked: {message!r}")
            wire.sock.settimeout(self._timeout)

    def _is_announcement(self, message: Any, wire: RawConnection) -> bool:
        """Whether it is one, or the confirmation of a subscription; an announcement is kept."""
        pushed = isinstance(message, hiredis.PushNotification)
        if not pushed and (wire is self._replies or _refused(message)):
            return False
        if message[0] == b"message":
            channel, word = cast(list[bytes], message)[1:3]
            self._announced.append((channel.decode(), word.decode()))
        return True


def _refused(reply: Any) -> bool:
    return isinstance(reply, driver.RedisError)
