"""A connection that reads values and receives invalidations, from its self-test to its first fault.

It speaks RESP3: replies and invalidations are one stream, in the server's order. Only reads of this link make the
server track a name for it. It reports changes and its own loss; the listener decides what is kept.
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
from headrace.store.connection import packed
from headrace.store.raw_connection import Lost, RawConnection
from headrace.store.url import Target
from headrace.store.verdict import verdict

# Names that changed; None: any name may have changed.
Announced: TypeAlias = list[str] | None

# Seconds within which the server must announce the write of the probe.
PROBE_TIMEOUT = 2.0


class Untracked(ServerError):
    """The server, or a proxy before it, does not announce changes. ``passes``: a failover is under way there."""

    passes = False


class PendingRead(msgspec.Struct, eq=False):
    """A read that was sent.

    Attributes:
        name: of the value.
        on_end: called when all replies have come, or the link is lost.
        awaited: number of replies to wait for.
        sent: monotonic time; the value's remaining time counts from here.
        replies: in the order of the commands.
        failed: the link was lost before the replies came.
    """

    name: str
    link: TrackingLink
    on_end: Callable[[], object]
    awaited: int = 2
    sent: float = msgspec.field(default_factory=monotonic)
    replies: list[Any] = msgspec.field(default_factory=list[Any])
    failed: bool = False

    def fail(self) -> None:
        self.failed = True
        self.on_end()


class TrackingLink:
    """A tracked connection whose self-test has passed.

    Attributes:
        wire: the connection; the listener waits for it.
        reads: pending reads in the order of their replies. The listener's lock guards them, and ``read``.
        heard: monotonic time of the last message of the server.
        asked: monotonic time of the last ping.
    """

    def __init__(self, target: Target, timeout: float, keys: Keys) -> None:
        """Connect, switch tracking on, and test it. Raises redis.exceptions.RedisError, OSError: the server cannot be
        reached. Raises Untracked: the server announced no change.
        """
        self.reads: deque[PendingRead] = deque()
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
        # The end of a Unix socket's peer is always seen.
        self.may_fall_silent = "path" not in target.options

    def read(self, pending: PendingRead) -> None:
        """Send a read for one name. Raises: Lost."""
        key = self._keys.cache(pending.name)
        self.reads.append(pending)
        self.wire.send(("GET", key), ("PTTL", key))

    def ping(self) -> None:
        self.reads.append(PendingRead("", self, bool, 1))
        self.wire.send(("PING",))

    def check_silence(self, now: float, patience: float) -> float:
        """Ping a silent server; return when to check again. A server may be gone without closing the connection.
        ``patience``: seconds of silence before the ping, and after it before the link is given up. Raises Lost: the
        server did not answer.
        """
        if self.asked <= self.heard:
            if now - self.heard < patience:
                return self.heard + patience
            self.ping()
            self.asked = now
        if now - self.asked >= patience:
            raise Lost(f"the server said nothing for {2 * patience:g} s")
        return self.asked + patience

    def receive(self, on_announcement: Callable[[Announced], object]) -> None:
        """Receive messages: end reads and report announcements, in the order of the stream. Raises Lost: discard
        everything read over this link.
        """
        messages = self.wire.receive()
        self.heard = monotonic()
        for message in messages:
            if _is_announcement(message):
                on_announcement(self._names(message[-1]))
            # Other pushes are of no use here.
            elif not _is(message, hiredis.PushNotification):
                self._on_reply(message)

    def close(self) -> None:
        self.wire.close()

    def _on_reply(self, reply: Any) -> None:
        if not self.reads:
            raise Lost("the server answered what it was not asked")
        pending = self.reads[0]
        if isinstance(reply, driver.RedisError) and not str(reply).startswith("WRONGTYPE"):
            self._target.learn(reply)
            raise Lost(f"the server refused a read: {reply}")
        pending.replies.append(reply)
        if len(pending.replies) == pending.awaited:
            self.reads.popleft()
            pending.on_end()

    def _names(self, keys: list[bytes] | None) -> Announced:
        """The names of the keys in an announcement; None: all."""
        if keys is None:
            return None
        return [key[len(self._start) :].decode("utf-8", "replace") for key in keys if key.startswith(self._start)]

    def _track(self) -> None:
        _accepted(self.wire.ask(("HELLO", "3")), "RESP3", self._target)
        _accepted(self.wire.ask(("CLIENT", "TRACKING", "ON")), "CLIENT TRACKING", self._target)

    def _probe(self, name: str) -> None:
        """Read a key, write it, and wait for the announcement. Without it copies would become stale unnoticed."""
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
