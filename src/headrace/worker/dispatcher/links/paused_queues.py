"""Which queues are paused, as far as this process knows: read through the cache, and heard of when it changes.

A dispatcher that sleeps on a paused queue is woken by each job that comes to it, and claims in vain; so it sleeps on
the others. That is all that is read from here: what may be claimed, the script that claims decides. Where no claim met
a paused queue there is neither a thread nor a connection for this: making them holds a start up for 50 ms and more.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.protocol import operations

if TYPE_CHECKING:
    from headrace.app import Headrace

# Reads until what was read is kept: each may be overtaken by a change.
TRIES = 3


class Pauses:
    """The agent that knows, and the descriptor that is readable when it knows better.

    Attributes:
        names: of paused queues; empty while changes would not be heard of. Written by its thread alone.
    """

    def __init__(self, app: Headrace) -> None:
        self.names: frozenset[str] = frozenset()
        self._app = app
        self._ear, self._bell = socket.socketpair()
        for end in (self._ear, self._bell):
            end.setblocking(False)
        self._due = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    def fileno(self) -> int:
        return self._ear.fileno()

    def look(self) -> None:
        """Somebody was woken in vain: find out whether a pause is why. Returns at once."""
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name="headrace-pauses", daemon=True)
            self._thread.start()
        self._due.set()

    def hear(self) -> None:
        """What made the descriptor readable is seen to."""
        try:
            self._ear.recv(4096)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Know nothing any more. It does not wait: a read may be under way."""
        self._closed = True
        self._due.set()

    def _run(self) -> None:
        self._app.cache.watch(operations.PAUSED, self._due.set)
        while True:
            # A copy has an end, however quiet the server is.
            self._due.wait(self._app.settings.cache_max_age if self.names else None)
            self._due.clear()
            if self._closed:
                return
            names = frozenset(self._read())
            if names != self.names:
                self.names = names
                self._bell.send(b"!")

    def _read(self) -> Iterable[str]:
        """The names, if changes of them will be heard of: what is not kept may be old before it is used."""
        from headrace.cache import ABSENT

        client, cache = self._app.client, self._app.cache
        for _ in range(TRIES):
            try:
                cache.get(operations.PAUSED, make=lambda: client.run(operations.paused(client.keys)))
            except HeadraceError:
                return ()
            known: Any = cache.peek(operations.PAUSED)
            if known is not ABSENT:
                return [str(name) for name in known]
        return ()
