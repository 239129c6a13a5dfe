"""The thread that keeps local copies true, with its connection to the server and the local store.

Duties:

1. Open a link when the cache is first used. Open a new one, with a back-off, when one is lost.
2. Drop copies that the server announces as changed, and copies whose end has come.
3. On any fault, empty the local store first, and keep nothing that was read over the old link.
4. Notice a server that does not answer any more over the network.
5. Begin anew in a forked child: no copies, and no thread or socket of the parent.

A reply is kept only while its link lives, and only if its name has not changed since the read was sent.

:class:`TrackingLink` is the connection, from its self-test to its first fault: it reads values and receives
announcements.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import hiredis
import msgspec
from redis import exceptions as driver

from headrace.cache.local_store import Bounds, ChangeWatchers, LocalStore
from headrace.clock import monotonic
from headrace.errors import ServerError
from headrace.protocol.cache_calls import probe
from headrace.protocol.keys import Keys
from headrace.store.connection import packed, pause_before
from headrace.store.raw_connection import Bell, Lost, RawConnection
from headrace.store.surroundings import in_forks
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
        reads: pending reads in the order of their replies. The listener's lock guards them, and ``read``.
        heard: monotonic time of the last message of the server; ``asked``: of the last ping.
    """

    def __init__(self, target: Target, timeout: float, keys: Keys) -> None:
        """Connect, switch tracking on, and test it. Raises Untracked: the server announced no change."""
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
        key = self._keys.cache(pending.name)
        self.reads.append(pending)
        self.wire.send(("GET", key), ("PTTL", key))

    def ping(self) -> None:
        self.reads.append(PendingRead("", self, bool, 1))
        # A node that lost the slot refuses this, but answers PING. It announces no change any more.
        self.wire.send(("PTTL", self._start))

    def check_silence(self, now: float, patience: float) -> float:
        """Ping a server silent for ``patience`` seconds; when to check again. Raises Lost: no answer for as long."""
        if self.asked <= self.heard:
            if now - self.heard < patience:
                return self.heard + patience
            self.ping()
            self.asked = now
        if now - self.asked >= patience:
            raise Lost(f"the server said nothing for {2 * patience:g} s")
        return self.asked + patience

    def receive(self, on_announcement: Callable[[Announced], object]) -> None:
        """Receive messages in the order of the stream. Raises Lost: discard everything read over this link."""
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
                late = f"the server did not answer a probe within {PROBE_TIMEOUT:g} s"
                mute = "a change was not announced: does a proxy stand before the server?"
                raise Untracked(late if len(answers) < 3 else mute) from None
            if _is_announcement(message):
                heard = heard or message[-1] is None or key.encode() in message[-1]
            elif not _is(message, hiredis.PushNotification):
                answers.append(message)
                _accepted([message], "the read and the write of its probe", self._target)


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


log = logging.getLogger("headrace.cache")

# Seconds for connecting and the self-test, after which a first reader continues without local copies.
FIRST = 1.0
# Reads of a forked child before it gets a thread and a connection. Many children end sooner.
CHILDHOOD = 8
# Seconds between tries where the server answers, but announces no changes.
RELUCTANT = 30.0
# Seconds between tries where the server takes no writes, as a replica that is promoted soon.
PASSING = 1.0


class Listener:
    """Keeps one process's copies true.

    Attributes:
        local: local copies. Readers read its dictionaries without the lock; every change holds the lock.
        epochs: number of links so far.
        announced: number of names that the server announced as changed.
        unreachable: the last try to reach the server failed, or a read had no answer in time.
        watchers: notified when a name may have changed.
        fault: reason why there is no link; empty while there is one.
    """

    def __init__(
        self, target: Callable[[], Target], keys: Keys, bounds: Bounds, *, timeout: float, silence: float
    ) -> None:
        self.local, self.watchers = LocalStore(bounds), ChangeWatchers()
        self._target, self._keys = target, keys
        self._timeout, self._silence = timeout, silence
        self._childhood = 0
        self._begin()
        in_forks(self)

    def _begin(self) -> None:
        self.epochs = self.announced = 0
        self.unreachable = False
        self.fault = ""
        self._lock = threading.Lock()
        self._link: TrackingLink | None = None
        self._pending: dict[str, PendingRead] = {}
        self._thread: threading.Thread | None = None
        self._bell: Bell | None = None
        self._closing = False
        self._planned = float("inf")
        self._first: list[Callable[[], object]] | None = []

    @property
    def tracking(self) -> bool:
        return self._link is not None

    def start(self, on_end: Callable[[], object]) -> bool:
        """Start the thread if there is none. True: ``on_end`` will be called when the first try has ended."""
        with self._lock:
            if self._childhood > 0:
                self._childhood -= 1
                return False
            if self._thread is None:
                self._closing = False
                try:
                    bell = Bell()
                    self._thread = bell.start(partial(self._run, bell), "headrace-cache")
                    self._bell = bell
                except (OSError, RuntimeError) as error:  # a later read tries again
                    self.fault = str(error)
                    return False
            if self._first is not None:
                self._first.append(on_end)
            return self._first is not None

    def send_read(self, name: str, on_end: Callable[[], object]) -> PendingRead | None:
        """Send a read whose reply may be kept; None without a link. The listener's thread calls ``on_end``."""
        if sys.is_finalizing():
            # No thread is left to receive the reply.
            return None
        with self._lock:
            link = self._link
            if link is None:
                return None
            pending = PendingRead(name, link, on_end)
            self._pending[name] = pending
            try:
                link.read(pending)
            except Lost as lost:
                self._drop_link(str(lost))
            return pending

    def keep(self, pending: PendingRead, value: Any, size: int, end: float) -> None:
        """Keep the value of a read, unless its name or its link changed since the read was sent."""
        with self._lock:
            if self._pending.get(pending.name) is pending and self._link is pending.link:
                self.local.put(pending.name, value, size, end)
                self._plan(end)

    def keep_absent(self, pending: PendingRead, end: float) -> None:
        with self._lock:
            if self._pending.get(pending.name) is pending and self._link is pending.link:
                self.local.put_absent(pending.name, end)
                self._plan(end)

    def end(self, pending: PendingRead) -> None:
        with self._lock:
            if self._pending.get(pending.name) is pending:
                del self._pending[pending.name]

    def forget(self, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                self._pending.pop(name, None)
                self.local.drop(name)

    def forget_all(self) -> None:
        with self._lock:
            self._pending.clear()
            self.local.clear()

    def on_overdue(self, pending: PendingRead) -> None:
        """Give up the link of an overdue reply. Further reads do not wait for a link until there is a new one."""
        with self._lock:
            if self._link is pending.link:
                self.unreachable = True
                self._drop_link("the server did not answer a read in time")

    def close(self) -> None:
        """End the thread, close the connections and drop all copies. A later use starts it again."""
        with self._lock:
            thread, bell, self._closing = self._thread, self._bell, True
            if bell is not None:
                bell.ring()
        if thread is not None and thread is not threading.current_thread():
            thread.join(2 * self._timeout)

    def begin_anew(self) -> None:
        """In a forked child: forget the parent's thread, close our copies of its sockets, start empty."""
        link, bell = self._link, self._bell
        self._begin()
        self.watchers.begin_anew()
        self._childhood = CHILDHOOD
        self.local.clear()
        with contextlib.suppress(Exception):
            for one in (link, bell):
                if one is not None:
                    one.close()

    def _plan(self, end: float) -> None:
        if end < self._planned and self._bell is not None:
            self._bell.ring()

    def _drop_link(self, why: str) -> None:
        """The link is lost: discard everything that was read over it. The caller holds the lock."""
        link, self._link, self.fault = self._link, None, why
        self.local.clear()
        self._pending.clear()
        if link is not None:
            while link.reads:
                link.reads.popleft().fail()
            self.watchers.notify_all()
        if self._bell is not None:
            self._bell.ring()

    def _run(self, bell: Bell) -> None:
        failures = 0
        while not self._closing:
            pause, began = 0.0, monotonic()
            try:
                self._live(TrackingLink(self._target(), self._timeout, self._keys), bell)
            except Lost as lost:
                # Try at once, but pause when links end within a second: an operator may end them on purpose.
                failures = 0 if monotonic() - began > 1.0 else failures + 1
                pause = pause_before(failures - 1, random.random()) if failures > 1 else 0.0
                log.info("the cache lost its connection and is empty: %s", lost)
            except Untracked as error:
                pause = (PASSING if error.passes else RELUCTANT) * (0.5 + 0.5 * random.random())
                if self.fault != str(error):
                    log.warning("the cache keeps no local copies: %s; it tries again by itself", error)
                self._without_link(str(error), unreachable=False)
            except Exception as error:  # noqa: BLE001 - the next try may succeed, whatever failed
                failures += 1
                # Readers have no copies meanwhile, so pauses are short.
                pause = min(pause_before(failures, random.random()), 0.5)
                self._without_link(f"the server cannot be reached: {error}", unreachable=True)
            if pause and not self._closing:
                bell.wait((), pause)
        with self._lock:
            self._drop_link("closed")
            self._thread = self._bell = None
            bell.close()
        self._end_first_try()
        self._first = []

    def _without_link(self, why: str, unreachable: bool) -> None:
        self.unreachable, self.fault = unreachable, why
        self._end_first_try()

    def _end_first_try(self) -> None:
        with self._lock:
            waiting, self._first = self._first or [], None
        for on_end in waiting:
            on_end()

    def _live(self, link: TrackingLink, bell: Bell) -> None:
        try:
            with self._lock:
                self._link = link
                self.fault = ""
                self.unreachable = False
                self.epochs += 1
            self._end_first_try()
            while not self._closing:
                readable = bell.wait([link.wire], self._until(link))
                with self._lock:
                    if self._link is not link:
                        raise Lost(self.fault)
                    if readable:
                        link.receive(self._on_announcement)
                    self.local.expire(monotonic())
        except Lost as lost:
            with self._lock:
                if self._link is link:
                    self._drop_link(str(lost))
            raise
        finally:
            with self._lock:
                if self._link is link:
                    self._drop_link("the listener ended")
            link.close()

    def _on_announcement(self, announced: Announced) -> None:
        """Drop the copies of changed names; None: of all names. Called in the order of the stream."""
        if announced is None:
            for name in list(self._pending):
                self._discard_read(name)
            self.local.clear()
            self.watchers.notify_all()
            return
        self.announced += len(announced)
        for name in announced:
            self._discard_read(name)
            self.local.drop(name)
        self.watchers.notify(announced)

    def _discard_read(self, name: str) -> None:
        pending = self._pending.get(name)
        # A read without a reply yet will see the change: mostly it is our own write. One with a reply may not.
        if pending is not None and pending.replies:
            del self._pending[name]

    def _until(self, link: TrackingLink) -> float | None:
        """Seconds until a copy ends or the server has been silent for too long; None: neither can happen."""
        with self._lock:
            now, end = monotonic(), self.local.next_end()
            times = [] if end is None else [end]
            if link.may_fall_silent and (len(self.local) or link.reads):
                times.append(link.check_silence(now, self._silence / 2))
            self._planned = min(times, default=float("inf"))
            return None if not times else self._planned - now
