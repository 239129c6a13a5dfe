"""One life of the connections that the cache reads and hears through, from the self-test to the first fault.

RESP3 needs one connection: replies and invalidations are one stream, in the server's order. RESP2 needs a second one,
to which the server redirects invalidations. Reads of this link, and nothing else, make the server track a name for it.
Must not decide what is served: it says what it heard, or that it is lost.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import hiredis
import msgspec
from redis import exceptions as driver

from headrace.errors import HeadraceError, ServerError
from headrace.protocol.cache_calls import probe
from headrace.protocol.keys import Keys
from headrace.store.connection import packed
from headrace.store.raw_connection import MORE, Lost, RawConnection
from headrace.store.url import Target

Protocol = Literal[2, 3]
# Names that changed, or None: all of them may have.
Announced: TypeAlias = list[str] | None

CHANNEL = b"__redis__:invalidate"
# Seconds within which the server must have said that the probe was written.
PROBE_TIMEOUT = 2.0


class Untracked(ServerError):
    """The server, or what stands before it, does not announce changes over this protocol."""


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
    sent: float = msgspec.field(default_factory=time.monotonic)
    replies: list[Any] = msgspec.field(default_factory=list[Any])
    failed: bool = False

    def fail(self) -> None:
        self.failed = True
        self.landed()


class TrackingLink:
    """A tracked reader that was seen to hear of a change.

    Attributes:
        protocol: that it speaks.
        ordered: replies and announcements come in the order in which the server made them.
        flights: reads under way, in the order of their replies. Guarded by the listener's lock, as ``send`` is.
        heard: when the server last said anything, per wire.
        asked: when it was last asked to.
    """

    def __init__(self, target: Target, timeout: float, keys: Keys, protocol: Protocol) -> None:
        """Connect, switch tracking on, and see it work.

        Raises:
            redis.exceptions.RedisError, OSError: the server cannot be reached.
            Untracked: it can, but announced no change over this protocol.
        """
        self.protocol = protocol
        self.ordered = protocol == 3
        self.flights: deque[Flight] = deque()
        self._keys = keys
        self._start = keys.cache("").encode()
        self._feed: RawConnection | None = None
        self._data = RawConnection(target, timeout)
        try:
            if protocol == 2:
                self._feed = RawConnection(target, timeout)
            self._track()
            self._probe(os.urandom(9).hex())
        except BaseException:
            self.close()
            raise
        for wire in self.wires():
            wire.sock.settimeout(0)
        self.heard = {wire.fileno(): time.monotonic() for wire in self.wires()}
        self.asked = 0.0
        # A Unix socket's other end cannot vanish without a word.
        self.may_fall_silent = "path" not in target.options

    def wires(self) -> list[RawConnection]:
        return [self._data] if self._feed is None else [self._data, self._feed]

    def read(self, flight: Flight) -> None:
        """Send a read for one name. Raises: Lost."""
        key = self._keys.cache(flight.name)
        self.flights.append(flight)
        self._data.send(("GET", key), ("PTTL", key))

    def ping(self) -> None:
        """Have the server say something over every connection. Raises: Lost."""
        self.flights.append(Flight("", self, bool, 1))
        for wire in self.wires():
            wire.send(("PING",))

    def look(self, now: float, patience: float) -> float:
        """When to look again at a server over the network, which may be gone without a word.

        Args:
            patience: seconds of silence after which it is asked to say something, and then given up.

        Raises:
            Lost: it said nothing.
        """
        heard = min(self.heard.values())
        if self.asked <= heard:
            if now - heard < patience:
                return heard + patience
            self.ping()
            self.asked = now
        if now - self.asked >= patience:
            raise Lost(f"the server said nothing for {2 * patience:g} s")
        return self.asked + patience

    def receive(self, number: int, hear: Callable[[Announced, TrackingLink], object]) -> None:
        """Take in what has come over one socket: flights land, and each announcement is heard, in their order.

        Raises:
            Lost: nothing heard over this link counts any more.
        """
        (wire,) = (wire for wire in self.wires() if wire.fileno() == number)
        messages = wire.receive()
        self.heard[number] = time.monotonic()
        for message in messages:
            announced = self._announced(message, wire)
            if announced is not MORE:
                hear(announced, self)
            elif wire is self._data:
                self._landing(message)

    def close(self) -> None:
        for wire in self.wires():
            wire.close()

    def _landing(self, reply: Any) -> None:
        if not self.flights:
            raise Lost("the server answered what it was not asked")
        flight = self.flights[0]
        if isinstance(reply, driver.RedisError) and not str(reply).startswith("WRONGTYPE"):
            raise Lost(f"the server refused a read: {reply}")
        flight.replies.append(reply)
        if len(flight.replies) == flight.awaited:
            self.flights.popleft()
            flight.landed()

    def _announced(self, message: Any, wire: RawConnection) -> Any:
        """The names in an announcement, None for all, ``MORE`` when it is none."""
        if not self._is_announcement(message, wire):
            # Other pushes concern nobody here; RESP2's feed says nothing else that matters.
            return [] if wire is self._feed or isinstance(message, hiredis.PushNotification) else MORE
        keys: list[bytes] | None = message[-1]
        if keys is None:
            return None
        return [key[len(self._start) :].decode("utf-8", "replace") for key in keys if key.startswith(self._start)]

    def _is_announcement(self, message: Any, wire: RawConnection) -> bool:
        if wire is self._feed:
            return _is(message, list) and bool(message[:2] == [b"message", CHANNEL])
        return _is(message, hiredis.PushNotification) and bool(message[0] == b"invalidate")

    def _track(self) -> None:
        if self._feed is None:
            _accepted(self._data.ask(("HELLO", "3")), "RESP3")
            _accepted(self._data.ask(("CLIENT", "TRACKING", "ON")), "CLIENT TRACKING")
            return
        id, subscribed = self._feed.ask(("CLIENT", "ID"), ("SUBSCRIBE", CHANNEL))
        _accepted([id, subscribed], "SUBSCRIBE")
        answers = self._data.ask(("CLIENT", "TRACKING", "ON", "REDIRECT", id))
        if _is(answers[0], driver.RedisError):
            # Refused also where the feed was lost meanwhile, as this then tells: no reason to stay without it for long.
            self._feed.ask(("PING",))
        _accepted(answers, "CLIENT TRACKING")

    def _probe(self, name: str) -> None:
        """Read a key, write it, and hear of it: a link that is silently deaf must never serve."""
        deadline = time.monotonic() + PROBE_TIMEOUT
        call = probe(self._keys, name)
        (key,) = call.keys
        ear, heard, answers = self._feed or self._data, False, list[Any]()
        packet = packed([("GET", key), ("SCRIPT", "LOAD", call.script.text), call.command()])
        self._data.sock.sendall(b"".join(packet))
        while not heard or len(answers) < 3:
            wire = ear if ear is not self._data and len(answers) == 3 else self._data
            wire.sock.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                message = wire.wait()
            except (TimeoutError, driver.TimeoutError):
                raise Untracked(_silence(self.protocol, len(answers))) from None
            if self._is_announcement(message, wire):
                heard = heard or message[-1] is None or key.encode() in message[-1]
            elif wire is self._data and not isinstance(message, hiredis.PushNotification):
                answers.append(message)
                _accepted([message], "the read and the write of its probe")


def _silence(version: int, answers: int) -> str:
    """Why a probe came to nothing in time."""
    if answers < 3:
        return f"the server did not answer a probe over RESP{version} within {PROBE_TIMEOUT:g} s"
    return f"a change was not announced over RESP{version}: does a proxy stand before the server?"


def _is(message: object, kind: type) -> bool:
    return isinstance(message, kind)


def _accepted(replies: Sequence[Any], what: str) -> None:
    for reply in replies:
        if isinstance(reply, driver.RedisError):
            raise Untracked(f"the server refuses {what}: {reply}")


def open_link(target: Target, timeout: float, keys: Keys, protocols: Sequence[Protocol]) -> TrackingLink:
    """A link over the first protocol that works.

    Raises:
        redis.exceptions.RedisError, OSError: the server cannot be reached.
        Untracked: it announces no changes.
    """
    refusal: HeadraceError = Untracked("no protocol to try")
    for protocol in protocols:
        try:
            return TrackingLink(target, timeout, keys, protocol)
        except Untracked as error:
            refusal = error
    raise refusal
