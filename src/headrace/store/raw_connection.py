"""A connection with a parser of our own, for callers that wait for replies and for callers that never block.

1. :class:`RawConnection`: sends commands and reads replies. A caller checks for its reply before it sleeps.
2. :class:`Bell` wakes a thread that waits for connections.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
from redis import exceptions as driver

from headrace.store.connection import connect, packed
from headrace.store.url import Target

# The parser needs more bytes for a whole message.
MORE: Any = object()
_TOO_EARLY = (BlockingIOError, InterruptedError)


class Lost(Exception):
    """The connection is lost; discard everything read over it."""


# Seconds for which a caller checks for its reply before it sleeps: falling asleep and waking cost client and server
# about as much processor time as this, and the reply of a near server is there by then.
LOOK = 60e-6
# After FRUITLESS checks in a row that found nothing, as with a far or busy server, each SELDOM-th call checks.
FRUITLESS, SELDOM = 8, 64
_give_way: Callable[[], object] = getattr(os, "sched_yield", bool)
# Connections of this process whose callers wait for replies. A set, whose changes are atomic.
_waiting = set["RawConnection"]()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_waiting.clear)


class RawConnection:
    """One connection: the driver makes it, its socket and a parser of our own serve it.

    By :meth:`ask`, which waits for the replies, or by :meth:`send` and :meth:`receive`, which never block.

    Attributes:
        end: when another connection must take its place, since its credentials end (monotonic seconds).
        used: when its last call began (monotonic seconds); the pool of connections writes and reads it.
    """

    def __init__(self, target: Target, timeout: float) -> None:
        self.used = 0.0
        self._connection = connect(target, timeout)
        self.end: float = self._connection.end
        self.sock: Any = self._connection._sock  # noqa: SLF001 - redis-py offers no other way to wait for a reply
        parse_error = self._connection._parser.parse_error  # noqa: SLF001 - one reading of errors for all connections
        self._reader: Any = hiredis.Reader(
            notEnoughData=MORE, replyError=parse_error, protocolError=driver.InvalidResponse
        )
        # Whether checking for a reply can be quicker than sleeping, and takes the processor from no job: not over TLS,
        # with one processor, or in a worker, whose other processes have work meanwhile.
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        alone = "headrace.worker.supervisor" not in sys.modules
        self._looks = type(self.sock) is socket.socket and count > 1 and alone
        self._fruitless = 0

    def fileno(self) -> int:
        number: int = self.sock.fileno()
        return number

    def ask(self, *commands: Sequence[Any]) -> list[Any]:
        """Replies, each within the socket's time-out; a refusal is a value among them."""
        for piece in packed(commands):
            self.sock.sendall(piece)
        _waiting.add(self)
        try:
            if self._looks:
                self._look()
            return [self.wait() for _ in commands]
        finally:
            _waiting.discard(self)

    def _look(self) -> None:
        """Read a reply that comes soon, without sleeping. Two threads that did so would slow each other."""
        if len(_waiting) > 1 or not self.sock.gettimeout():
            return
        self._fruitless += 1
        if self._fruitless > FRUITLESS and self._fruitless % SELDOM:
            return
        number, end, late = self.sock.fileno(), time.perf_counter() + LOOK, False
        while True:
            try:
                self._reader.feed(os.read(number, 1 << 16))
            except BlockingIOError:
                if late or len(_waiting) > 1:
                    return
            else:
                self._fruitless = 0
                return
            _give_way()
            late = time.perf_counter() > end

    def wait(self) -> Any:
        while (message := self._reader.gets()) is MORE:
            data = self.sock.recv(1 << 16)
            if not data:
                raise driver.ConnectionError("the server closed the connection")
            self._reader.feed(data)
        return message

    def send(self, *commands: Sequence[Any]) -> None:
        """Send without waiting. Raises Lost: it did not fit, so the server does not read, or the connection broke."""
        data = b"".join(packed(commands))
        try:
            fits = self.sock.send(data) == len(data)
        except OSError as error:
            raise Lost(f"cannot send: {error}") from error
        if not fits:
            raise Lost("the server does not read what it is sent")

    def receive(self) -> list[Any]:
        """All messages that have come. Raises Lost: the connection ended or speaks gibberish."""
        try:
            while data := self.sock.recv(1 << 16):
                self._reader.feed(data)
                if len(data) < 1 << 16 and not _pending(self.sock):
                    break
            else:
                raise Lost("the server closed the connection")
        except _TOO_EARLY:
            pass
        except OSError as error:
            # TLS says "not yet" as an error of its own kind.
            if type(error).__name__ not in ("SSLWantReadError", "SSLWantWriteError"):
                raise Lost(f"cannot receive: {error}") from error
        found: list[Any] = []
        try:
            while (message := self._reader.gets()) is not MORE:
                found.append(message)
        except driver.InvalidResponse as error:
            raise Lost(f"the server's words cannot be read: {error}") from error
        return found

    def close(self) -> None:
        # The driver shuts a socket down only in the process that opened it: a child's copy must not end its parent's.
        self._connection.disconnect()


def _pending(sock: Any) -> bool:
    # TLS may hold decrypted bytes that no poll would ever announce.
    pending: Callable[[], int] | None = getattr(sock, "pending", None)
    return pending is not None and pending() > 0


class Bell:
    """Wakes a thread that waits for sockets."""

    def __init__(self) -> None:
        # Not a pipe, which Windows cannot wait for.
        self._listens, self._rings = socket.socketpair()
        self._listens.setblocking(False)
        self._rings.setblocking(False)

    def fileno(self) -> int:
        return self._listens.fileno()

    def ring(self) -> None:
        # It rings already, or its reader has ended.
        with contextlib.suppress(OSError):
            self._rings.send(b"!")

    def wait(self, others: Sequence[RawConnection], seconds: float | None) -> list[int]:
        """Sockets that can be read; none when it rang or time was up."""
        own = self.fileno()
        numbers, left = [own, *(wire.fileno() for wire in others)], None if seconds is None else max(0.0, seconds)
        if hasattr(select, "poll"):
            poll = select.poll()
            for number in numbers:
                poll.register(number, select.POLLIN)
            found = [number for number, _ in poll.poll(None if left is None else left * 1000 + 0.5)]
        else:  # Windows
            found = select.select(numbers, [], [], left)[0]
        if own in found:
            found.remove(own)
            with contextlib.suppress(BlockingIOError):
                while self._listens.recv(512):
                    pass
        return found

    def close(self) -> None:
        self._listens.close()
        self._rings.close()

    def start(self, run: Callable[[], None], name: str) -> threading.Thread:
        """Start the daemon thread that it wakes. Raises RuntimeError: there is no room, or the interpreter ends."""
        thread = threading.Thread(target=run, name=name, daemon=True)
        try:
            # Before Python 3.12 the start would wait for ever for a thread that does not run any more.
            if sys.is_finalizing():
                raise RuntimeError("no thread can be started: the interpreter ends")
            thread.start()
        except RuntimeError:
            self.close()
            raise
        return thread
