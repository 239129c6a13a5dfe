"""One life of the connection that the cache reads and hears through, from the self-test to the first fault.

It speaks RESP3: replies and invalidations are one stream, in the server's order. Reads of this link, and nothing else,
make the server track a name for it. Must not decide what is served: it says what it heard, or that it is lost.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import hiredis
import msgspec
from redis import exceptions as driver

from headrace.clock import monotonic
from headrace.errors import ServerError
from headrace.protocol.cache_calls import probe
from headrace.protocol.keys import Keys
from headrace.store.connection import Lost, RawConnection, packed, verdict
from headrace.store.url import Target

# Names that changed, or None: all of them may have.
Announced: TypeAlias = list[str] | None

# Seconds within which the server must have said that the probe was written.
PROBE_TIMEOUT = 2.0


class Untracked(ServerError):
    """The server, or what stands before it, does not announce changes; ``passes``: a failover is under way there."""

    passes = False


class Flight(msgspec.Struct, eq=False):
    """One read that is under way.

    Attributes:
        name: what is read.
        landed: called when all replies have come, or the link is lost.
        awaited: how many replies it has.
        sent: when, by the monotonic clock: what the reply says of the time left counts from here at the earliest.
        replies: in the order of the commands.
        failed: the link was lost first.
    """

    name: str
    link: TrackingLink
    landed: Callable[[], object]
    awaited: int = 2
    sent: float = msgspec.field(default_factory=monotonic)
    replies: list[Any] = msgspec.field(default_factory=list[Any])
    failed: bool = False

    def fail(self) -> None:
        self.failed = True
        self.landed()


class TrackingLink:
    """A tracked reader that was seen to hear of a change.

    Attributes:
        wire: what it hears from; to be waited for.
        flights: reads under way, in the order of their replies. Guarded by the listener's lock, as ``read`` is.
        heard: when the server last said anything.
        asked: when it was last asked to.
    """

    def __init__(self, target: Target, timeout: float, keys: Keys) -> None:
        """Connect, switch tracking on, and see it work.

        Raises:
            redis.exceptions.RedisError, OSError: the server cannot be reached.
            Untracked: it can, but announced no change.
        """
        self.flights: deque[Flight] = deque()
        self.wire = RawConnection(target, timeout)
        self._target, self._keys = target, keys
        self._start = keys.cache("").encode()
        try:
            self._track()
            self._probe(os.urandom(9).hex())
        except BaseException as error:
            self.close()
            if isinstance(error.__cause__, driver.RedisError):
                target.learn(error.__cause__)
            raise
        self.wire.sock.settimeout(0)
        self.heard, self.asked = monotonic(), 0.0
        # A Unix socket's other end cannot vanish without a word.
        self.may_fall_silent = "path" not in target.options

    def read(self, flight: Flight) -> None:
        """Send a read for one name. Raises: Lost."""
        key = self._keys.cache(flight.name)
        self.flights.append(flight)
        self.wire.send(("GET", key), ("PTTL", key))

    def ping(self) -> None:
        """Have the server say something. Raises: Lost."""
        self.flights.append(Flight("", self, bool, 1))
        self.wire.send(("PING",))

    def look(self, now: float, patience: float) -> float:
        """When to look again at a server over the network, which may be gone without a word.

        Args:
            patience: seconds of silence after which it is asked to say something, and then given up.

        Raises:
            Lost: it said nothing.
        """
        if self.asked <= self.heard:
            if now - self.heard < patience:
                return self.heard + patience
            self.ping()
            self.asked = now
        if now - self.asked >= patience:
            raise Lost(f"the server said nothing for {2 * patience:g} s")
        return self.asked + patience

    def listen(self, hear: Callable[[Announced], object]) -> None:
        """Take in what has come: flights land, and each announcement is heard, in their order.

        Raises:
            Lost: nothing heard over this link counts any more.
        """
        messages = self.wire.receive()
        self.heard = monotonic()
        for message in messages:
            if _is_announcement(message):
                hear(self._names(message[-1]))
            # Other pushes concern nobody here.
            elif not _is(message, hiredis.PushNotification):
                self._landing(message)

    def close(self) -> None:
        self.wire.close()

    def _landing(self, reply: Any) -> None:
        if not self.flights:
            raise Lost("the server answered what it was not asked")
        flight = self.flights[0]
        if isinstance(reply, driver.RedisError) and not str(reply).startswith("WRONGTYPE"):
            self._target.learn(reply)
            raise Lost(f"the server refused a read: {reply}")
        flight.replies.append(reply)
        if len(flight.replies) == flight.awaited:
            self.flights.popleft()
            flight.landed()

    def _names(self, keys: list[bytes] | None) -> Announced:
        """The names in an announcement."""
        if keys is None:
            return None
        return [key[len(self._start) :].decode("utf-8", "replace") for key in keys if key.startswith(self._start)]

    def _track(self) -> None:
        _accepted(self.wire.ask(("HELLO", "3")), "RESP3", self._target)
        _accepted(self.wire.ask(("CLIENT", "TRACKING", "ON")), "CLIENT TRACKING", self._target)

    def _probe(self, name: str) -> None:
        """Read a key, write it, and hear of it: a link that is silently deaf must never serve."""
        deadline = monotonic() + PROBE_TIMEOUT
        call = probe(self._keys, name)
        key = call.keys[0]
        heard, answers = False, list[Any]()
        packet = packed([("GET", key), ("SCRIPT", "LOAD", call.script.text), call.command()])
        self.wire.sock.sendall(b"".join(packet))
        while not heard or len(answers) < 3:
            self.wire.sock.settimeout(max(0.001, deadline - monotonic()))
            try:
                message = self.wire.wait()
            except (TimeoutError, driver.TimeoutError):
                raise Untracked(_silence(len(answers))) from None
            if _is_announcement(message):
                heard = heard or message[-1] is None or key.encode() in message[-1]
            elif not _is(message, hiredis.PushNotification):
                answers.append(message)
                _accepted([message], "the read and the write of its probe", self._target)


def _silence(answers: int) -> str:
    """Why a probe came to nothing in time."""
    if answers < 3:
        return f"the server did not answer a probe within {PROBE_TIMEOUT:g} s"
    return "a change was not announced: does a proxy stand before the server?"


def _is_announcement(message: Any) -> bool:
    return _is(message, hiredis.PushNotification) and bool(message[0] == b"invalidate")


def _is(message: object, kind: type) -> bool:
    return isinstance(message, kind)


def _accepted(replies: Sequence[Any], what: str, target: Target) -> None:
    for reply in replies:
        if isinstance(reply, driver.RedisError):
            refused = Untracked(f"the server refuses {what}: {reply}")
            refused.passes = verdict(reply, target, what) == "again"
            raise refused from reply
