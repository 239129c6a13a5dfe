"""A dispatcher's connections to the store, used without waiting. All three are made anew together when one fails.

A thread makes connections. A name server, a connect, a TLS handshake, a password, a private server that must be
started: each of these may be silent for longer than a lease. The dispatcher goes on meanwhile, and stops its runners in
time.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import random
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import hiredis
from redis import exceptions as driver

from headrace.errors import HeadraceError
from headrace.protocol.script import Script
from headrace.store.connection import connect, packed, pause_before
from headrace.store.url import Target, parse
from headrace.store.verdict import verdict
from headrace.worker.dispatcher.runner_links import Selectors
from headrace.worker.standard_streams import log

# A reply that takes longer than this (seconds) ends the connection: the server is gone or the socket half-open.
REPLY_TIMEOUT = 5.0
# Bytes a second that a slow line takes at least: so much longer a large request may take.
SLOWEST = 100_000
_MORE = object()
# The socket has nothing to read, or no room to write, now.
_LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class StoreConnection:
    """One connection with at most one request in flight. After :meth:`ready` no method waits. One that failed is thrown
    away: a late reply would be taken for the answer to the next question.

    Attributes:
        deadline: monotonic time at which the awaited reply is overdue; infinite when none is awaited.
        end: when another connection must take its place, since its credentials end (monotonic seconds).
        trips: requests sent.
        backlog: what the socket had no room for; :meth:`flush` sends it.
    """

    def __init__(self, target: Target, timeout: float) -> None:
        """Connect. Waits, for ``timeout`` seconds at each step of it."""
        self._connection: Any = connect(target, timeout)
        # redis-py makes the connection (credentials, TLS); replies are read here. Its own reading sets time-outs and
        # builds messages for errors that do not come, which is half of a worker's delay between a reply and its job.
        self._sock: Any = self._connection._sock  # noqa: SLF001 - redis-py offers no other way to wait for a reply
        parse_error = self._connection._parser.parse_error  # noqa: SLF001 - one reading of errors for all connections
        self._reader = hiredis.Reader(replyError=parse_error, notEnoughData=_MORE)
        self._expected = 0
        self._replies: list[Any] = []
        self.deadline = math.inf
        self.end: float = self._connection.end
        self.trips = 0
        self.backlog = bytearray()

    def fileno(self) -> int:
        return int(self._sock.fileno())

    @property
    def busy(self) -> bool:
        return self._expected > 0

    def ask(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands and wait for their replies; only before :meth:`ready`. Raises RedisError, OSError."""
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
        self._sock.setblocking(False)

    def send(self, commands: Sequence[Sequence[Any]], patience: float) -> None:
        """Send commands; their replies are due ``patience`` seconds after a slow line has taken them."""
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
        """The replies to everything sent, None before the last has arrived; an error reply is the exception it is."""
        while len(self._replies) < self._expected:
            reply = self._reader.gets()
            if reply is not _MORE:
                self._replies.append(reply)
            elif not self._feed():
                return None
        replies, self._replies, self._expected, self.deadline = self._replies, [], 0, math.inf
        return replies

    def messages(self) -> list[Any]:
        """What has arrived on a subscription: lists that begin with a kind, such as ``message``, or an error."""
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


class Links(NamedTuple):
    """The connections of one dispatcher, ready to be used.

    Attributes:
        main: for requests and their replies; the server knows every script.
        waker: sleeps on wake-up keys. ``waker_id`` is the server's number of it, 0 where that refuses to tell.
        mail: hears what others write.
    """

    main: StoreConnection
    waker: StoreConnection
    mail: StoreConnection
    waker_id: int
    target: Target

    @property
    def all(self) -> tuple[StoreConnection, StoreConnection, StoreConnection]:
        return self.main, self.waker, self.mail

    @property
    def deadline(self) -> float:
        return min(self.main.deadline, self.waker.deadline, self.mail.deadline)

    def close(self) -> None:
        for link in self.all:
            link.close()


class Connector:
    """Makes :class:`Links`, one attempt at a time. Its descriptor can be read when an attempt has ended."""

    def __init__(self, timeout: float, scripts: Sequence[Script]) -> None:
        self.busy = False
        self._timeout = timeout
        self._scripts = scripts
        self._ear, self._bell = socket.socketpair()
        self._result: Links | Exception | None = None

    def fileno(self) -> int:
        return self._ear.fileno()

    def start(self, target: Target, revive: Callable[[], str] | None) -> None:
        """Begin an attempt and return at once; ``revive`` is asked first, in the thread, where the server is now."""
        self.busy = True

        def work() -> None:
            try:
                self._end(self._connect(target if revive is None else parse(revive())))
            except (driver.RedisError, HeadraceError, OSError) as error:
                self._end(error)
            except Exception as error:  # noqa: BLE001 - it would be lost, and the dispatcher would wait for ever
                self._end(HeadraceError(f"internal error while connecting: {error!r}"))

        try:
            threading.Thread(target=work, name="headrace-connect", daemon=True).start()
        except RuntimeError as error:
            # The system has no room for one now: tried again like a server that is away, since jobs run.
            self._end(OSError(errno.EAGAIN, str(error)))

    def take(self) -> Links | Exception:
        self._ear.recv(1)
        result, self._result, self.busy = self._result, None, False
        assert result is not None
        return result

    def _end(self, result: Links | Exception) -> None:
        self._result = result
        self._bell.send(b"!")

    def _connect(self, target: Target) -> Links:
        with contextlib.ExitStack() as failed:
            main, waker, mail = (
                failed.enter_context(closing(StoreConnection(target, self._timeout))) for _ in range(3)
            )
            main.ask([("SCRIPT", "LOAD", script.text) for script in self._scripts])
            number = 0
            with contextlib.suppress(driver.ResponseError):
                number = int(waker.ask([("CLIENT", "ID")])[0])
            links = Links(main, waker, mail, number, target)
            failed.pop_all()
        for link in links.all:
            link.ready()
        return links


# A fault that lasts is told again after this many seconds.
AGAIN_AFTER = 60.0
# Faults that are remembered: a server that is half away fails in two or three ways by turns.
MOST = 24


class StoreLinks:
    """Makes, keeps and throws away connections.

    Attributes:
        failures: how often each connection (``main``, ``waker``, ``mail``) failed in a row.
        made: the connections; None while there are none.
        patience: seconds that a reply may take.
        revive: brings a private server back, in a thread, and says where it is; None where another runs the server.
    """

    def __init__(
        self,
        target: Target,
        patience: float,
        scripts: Sequence[Script],
        watched: Selectors,
        handlers: Sequence[Callable[[], None]],
        connected: Callable[[Links], None],
        lost: Callable[[], None],
        revive: Callable[[], str] | None,
    ) -> None:
        """``handlers``: called when something has arrived on ``main``, ``waker`` or ``mail``; ``connected``: when these
        are there; ``lost``: when they were, and are thrown away.
        """
        self.made: Links | None = None
        self.target, self.patience, self.revive = target, patience, revive
        self._watched, self._handlers, self._connected, self._lost = watched, handlers, connected, lost
        self._connector = Connector(patience, scripts)
        watched.watch(self._connector, self._on_connected, urgent=True)
        self._connect_at = 0.0
        # How often each connection failed in a row; that none could be made counts for ``main``.
        self.failures = Counter[str]()
        # By connection and fault: when it may be told again. Scripts whose last call was refused, and what was told.
        self._say_again: dict[tuple[str, str], float] = {}
        self._refused: dict[str, str] = {}

    @property
    def next(self) -> float:
        connect = float("inf") if self._connector.busy else self._connect_at
        return connect if self.made is None else min(connect, self.made.deadline)

    def keep(self, now: float) -> None:
        if self.made is not None and now >= self.made.deadline:
            overdue = min(Links._fields[:3], key=lambda name: getattr(self.made, name).deadline)
            self.fail(driver.TimeoutError("a reply is overdue"), "answer", overdue)
        elif not self._connector.busy and now >= self._connect_at:
            self._connector.start(self.target, self.revive if self.failures["main"] >= 2 else None)

    def post(self, link: StoreConnection, commands: Sequence[Sequence[Any]], patience: float = 0.0) -> None:
        try:
            waited = bool(link.backlog)
            link.send(commands, patience or self.patience)
            if waited or link.backlog:
                self._watched.set_write_interest(link, wanted=bool(link.backlog))
        except OSError as error:
            self.fail(error, "take a request", self._name(link))

    def received(self, link: StoreConnection, *, awaited: bool) -> list[Any]:
        """What has arrived on a connection; nothing while ``awaited`` replies are not all there, or where it failed."""
        try:
            if link.backlog:
                link.flush()
                self._watched.set_write_interest(link, wanted=bool(link.backlog))
            replies = link.receive() if awaited else link.messages()
        except (driver.RedisError, OSError) as error:
            self.fail(error, "answer", self._name(link))
            return []
        if replies is None:
            # A part came: large arguments over a slow line take longer than a reply may.
            link.deadline = max(link.deadline, time.monotonic() + self.patience)
        return replies or []

    def on_any_answer(self, name: str = "main") -> None:
        if self.failures[name]:
            if name == "main":
                log.info("%s answers again", self.target.shown, code="store.back")
            del self.failures[name]
            self._say_again = {said: at for said, at in self._say_again.items() if said[0] != name}

    def refused(self, error: Exception, doing: str) -> None:
        text = str(verdict(error, self.target, doing))
        self._refused[doing] = text
        self.report(logging.ERROR, text, code="store.refuses")

    def accepted(self, doing: str) -> None:
        if self._refused and doing in self._refused:
            self._say_again.pop(("", self._refused.pop(doing)), None)
            log.info("%s accepts %s again", self.target.shown, doing, code="store.back")

    def _name(self, link: StoreConnection) -> str:
        return next((name for name in Links._fields[:3] if getattr(self.made, name, None) is link), "main")

    def fail(self, error: Exception, doing: str, name: str = "main") -> None:
        """Throw all connections away: no late reply may answer another question. Pauses grow until one is answered."""
        self._drop()
        now = time.monotonic()
        if self.target.learn(error):
            self._connect_at = now
            log.info("the slot of the namespace is at another node now (%s)", error, code="store.moved")
            return
        self.failures[name] += 1
        self._connect_at = now + pause_before(self.failures[name], random.random(), self.target.most_pause)
        private = self.revive is not None
        word = error if isinstance(error, HeadraceError) else verdict(error, self.target, doing, private=private)
        refused = isinstance(word, HeadraceError)
        text = str(word) if refused else f"{self.target.shown} does not answer ({error}); trying again"
        level = logging.ERROR if refused else logging.WARNING
        self.report(level, text, name, code="store.refuses" if refused else "store.away")

    def report(self, level: int, text: str, name: str = "", *, code: str) -> None:
        now = time.monotonic()
        if now >= self._say_again.get((name, text), 0.0):
            if len(self._say_again) == MOST:
                self._say_again.clear()
            self._say_again[name, text] = now + AGAIN_AFTER
            log.log(level, "%s", text, code=code)

    def _drop(self) -> None:
        made, self.made = self.made, None
        if made is not None:
            for link in made.all:
                self._watched.unwatch(link)
            made.close()
            self._lost()

    def _on_connected(self) -> None:
        made = self._connector.take()
        if isinstance(made, Exception):
            if self.made is None:
                self.fail(made, "be connected to")
            else:
                # Those that are there work on until their credentials end.
                self._connect_at = time.monotonic() + pause_before(MOST, random.random())
            return
        self._drop()
        self.made, self.target = made, made.target
        self._connect_at = min(link.end for link in made.all)
        for link, handler in zip(made.all, self._handlers, strict=True):
            self._watched.watch(link, handler, urgent=True)
        self._connected(made)
