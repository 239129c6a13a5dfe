"""Whether the first runners of a new image could begin: their hooks run after the fork, in each of them.

Owns a socket pair for each such runner, by which it says that it has settled in, or why it could not. Only an image
that is to replace another waits for this: until then the other one claims, and goes on if this one cannot.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable, Generator

# What a runner says ends with this; a child of one of its hooks may keep the socket open for longer.
_END = b"\0"


class Settling:
    """The runners that have not settled in yet.

    Attributes:
        socks: what children must close.
    """

    def __init__(self, selector: selectors.BaseSelector, told: Callable[[str], None]) -> None:
        """Make one; ``told``: called for each runner: with nothing when it has settled in, else with what kept it."""
        self.socks: list[socket.socket] = []
        self._selector = selector
        self._told = told

    @contextlib.contextmanager
    def expected(self) -> Generator[socket.socket]:
        """For a runner, for as long as it takes to fork it; one that could not be forked says nothing."""
        mine, theirs = socket.socketpair()
        self.socks.append(mine)
        said = bytearray()

        def heard() -> None:
            if mine not in self.socks:
                # Another one said in the same moment that it cannot begin, and nobody waits any more.
                return
            data = mine.recv(1 << 16)
            said.extend(data)
            if said.endswith(_END):
                self._forget(mine)
                self._told(said[:-1].decode("utf-8", "replace"))
            elif not data:
                self._forget(mine)
                self._told("one ended before it had settled in")

        self._selector.register(mine, selectors.EVENT_READ, heard)
        with theirs:
            try:
                yield theirs
            except OSError:
                self._forget(mine)
                raise

    def end(self) -> None:
        """Nobody waits any more."""
        for sock in list(self.socks):
            self._forget(sock)

    def _forget(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        self.socks.remove(sock)
        sock.close()


def tell(sock: socket.socket, trouble: str) -> None:
    """Runner: it has settled in, or what kept it."""
    with contextlib.suppress(OSError), sock:
        sock.sendall(trouble.encode("utf-8", "replace") + _END)
