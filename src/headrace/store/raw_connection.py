"""One connection: for those who wait for replies, and those who never block; and the bell that wakes the latter."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
from redis import exceptions as driver

from headrace.store.connection import connect, packed
from headrace.store.url import Target

# What the parser gives when a message is not whole yet.
MORE: Any = object()
_TOO_EARLY = (BlockingIOError, InterruptedError)


class Lost(Exception):
    """The link is of no use any more: nothing that was read over it may be served."""


class RawConnection:
    """One connection: the driver makes it, its socket and a parser of our own serve it.

    By :meth:`ask`, which waits for the replies, or by :meth:`send` and :meth:`receive`, which never block.
    """

    def __init__(self, target: Target, timeout: float) -> None:
        self._connection = connect(target, timeout)
        self.sock: Any = self._connection._sock  # noqa: SLF001 - redis-py offers no other way to wait for a reply
        parse_error = self._connection._parser.parse_error  # noqa: SLF001 - one reading of errors for all connections
        self._reader: Any = hiredis.Reader(
            notEnoughData=MORE, replyError=parse_error, protocolError=driver.InvalidResponse
        )

    def fileno(self) -> int:
        number: int = self.sock.fileno()
        return number

    def ask(self, *commands: Sequence[Any]) -> list[Any]:
        """Replies, each within the socket's time-out; a refusal is a value among them."""
        for piece in packed(commands):
            self.sock.sendall(piece)
        return [self.wait() for _ in commands]

    def wait(self) -> Any:
        """The next message, within the socket's time-out."""
        while (message := self._reader.gets()) is MORE:
            data = self.sock.recv(1 << 16)
            if not data:
                raise driver.ConnectionError("the server closed the connection")
            self._reader.feed(data)
        return message

    def send(self, *commands: Sequence[Any]) -> None:
        """Send without waiting. Requests are tiny: when they do not fit, nobody reads them at the other end.

        Raises:
            Lost: they did not fit, or the connection is broken.
        """
        data = b"".join(packed(commands))
        try:
            fits = self.sock.send(data) == len(data)
        except OSError as error:
            raise Lost(f"cannot send: {error}") from error
        if not fits:
            raise Lost("the server does not read what it is sent")

    def receive(self) -> list[Any]:
        """All messages that have come.

        Raises:
            Lost: the connection ended or speaks gibberish.
        """
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
        self._listens, self._rings = os.pipe()
        os.set_blocking(self._listens, False)
        os.set_blocking(self._rings, False)

    def fileno(self) -> int:
        return self._listens

    def ring(self) -> None:
        # It rings already, or nobody listens any more.
        with contextlib.suppress(OSError):
            os.write(self._rings, b"!")

    def wait(self, others: Sequence[RawConnection], seconds: float | None) -> list[int]:
        """Sockets that have something to say; none when it rang or time was up."""
        poll = select.poll()
        for number in (self._listens, *(wire.fileno() for wire in others)):
            poll.register(number, select.POLLIN)
        found = [number for number, _ in poll.poll(None if seconds is None else max(0.0, seconds) * 1000 + 0.5)]
        if self._listens in found:
            found.remove(self._listens)
            try:
                while os.read(self._listens, 512):
                    pass
            except BlockingIOError:
                pass
        return found

    def close(self) -> None:
        os.close(self._listens)
        os.close(self._rings)

    def start(self, run: Callable[[], None], name: str) -> threading.Thread:
        """Start the daemon thread that it wakes, and that closes it; where none can be started it is closed at once.

        Raises:
            RuntimeError: the system has no room for a thread, or the interpreter ends.
        """
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
