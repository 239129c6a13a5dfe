"""How a dispatcher gets its connections: a thread makes them, since a network may take as long as it likes.

A name server, a connect, a TLS handshake, a password, a private server that must be started: each of these may be
silent for longer than a lease. The dispatcher goes on meanwhile, and stops its runners in time.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import NamedTuple

from redis import exceptions as driver

from headrace.errors import HeadraceError
from headrace.protocol.script import Script
from headrace.store.url import Target, parse
from headrace.worker.dispatcher.links.store_connection import StoreConnection


class Links(NamedTuple):
    """The connections of one dispatcher, ready to be used.

    Attributes:
        main: for requests and their replies; the server knows every script.
        waker: sleeps on wake-up keys. ``waker_id`` is the server's number of it.
        mail: hears what others write.
        target: where they lead.
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
        """When the first of the awaited replies is overdue (monotonic seconds); infinite when none is awaited."""
        return min(self.main.deadline, self.waker.deadline, self.mail.deadline)

    def close(self) -> None:
        for link in self.all:
            link.close()


class Connector:
    """Makes :class:`Links`, one attempt at a time. Its descriptor can be read when an attempt has ended.

    Attributes:
        busy: an attempt is under way.
    """

    def __init__(self, timeout: float, scripts: Sequence[Script]) -> None:
        """Make one; ``timeout``: seconds that each step of a connection may take."""
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
        arguments = (target, revive)
        try:
            threading.Thread(target=self._try, args=arguments, name="headrace-connect", daemon=True).start()
        except RuntimeError as error:
            # The system has no room for one now: tried again like a server that is away, since jobs run.
            self._end(OSError(errno.EAGAIN, str(error)))

    def take(self) -> Links | Exception:
        self._ear.recv(1)
        result, self._result, self.busy = self._result, None, False
        assert result is not None
        return result

    def _try(self, target: Target, revive: Callable[[], str] | None) -> None:
        try:
            self._end(self._connect(target if revive is None else parse(revive())))
        except (driver.RedisError, HeadraceError, OSError) as error:
            self._end(error)
        except Exception as error:  # noqa: BLE001 - nobody else would hear of it, and the dispatcher would wait for ever
            self._end(HeadraceError(f"internal error while connecting: {error!r}"))

    def _end(self, result: Links | Exception) -> None:
        self._result = result
        self._bell.send(b"!")

    def _connect(self, target: Target) -> Links:
        with contextlib.ExitStack() as failed:
            main, waker, mail = (
                failed.enter_context(closing(StoreConnection(target, self._timeout))) for _ in range(3)
            )
            main.ask([("SCRIPT", "LOAD", script.text) for script in self._scripts])
            links = Links(main, waker, mail, waker.ask([("CLIENT", "ID")])[0], target)
            failed.pop_all()
        for link in links.all:
            link.ready()
        return links
