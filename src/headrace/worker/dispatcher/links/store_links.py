"""A dispatcher's three connections to the store, all made anew together when one fails.

``main`` is for requests, ``waker`` sleeps on the queues' wake-up keys, ``mail`` hears of cancellations.
Nothing here waits: a thread connects (connector.py), and what a socket has no room for is sent when it has.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from redis import exceptions as driver

from headrace.errors import HeadraceError
from headrace.protocol.script import Script
from headrace.store.connection import pause_before, verdict
from headrace.store.url import Target
from headrace.worker.dispatcher.links.connector import Connector, Links
from headrace.worker.dispatcher.links.store_connection import StoreConnection
from headrace.worker.dispatcher.links.watched import Selectors

log = logging.getLogger("headrace.worker")

# A fault that lasts is told again after this many seconds.
AGAIN_AFTER = 60.0
# Faults that are remembered: a server that is half away fails in two or three ways by turns.
MOST = 8


class StoreLinks:
    """Makes, keeps and throws away connections.

    Attributes:
        made: the connections; None while there are none.
        target: where they lead.
        patience: seconds that a reply may take.
        revive: brings a private server back, and says where it is; None where the server is another one's to run. It is
            called in a thread.
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
        """Make one without connections.

        Args:
            handlers: called when something has arrived on ``main``, ``waker`` or ``mail``.
            connected: called when they are there; ``lost``: when they were, and are thrown away.
        """
        self.made: Links | None = None
        self.target = target
        self.patience = patience
        self.revive = revive
        self._watched = watched
        self._handlers, self._connected, self._lost = handlers, connected, lost
        self._connector = Connector(patience, scripts)
        watched.watch(self._connector, self._on_connected, urgent=True)
        self._connect_at = 0.0
        self._failures = 0
        # By fault: when it may be told again.
        self._say_again: dict[str, float] = {}

    @property
    def next(self) -> float:
        """When a connection must be tried again, or a reply is overdue (monotonic seconds)."""
        if self.made is None:
            return float("inf") if self._connector.busy else self._connect_at
        return self.made.deadline

    def keep(self, now: float) -> None:
        """Notice overdue replies; connect again when it is time."""
        if self.made is not None:
            if now >= self.made.deadline:
                self.fail(driver.TimeoutError("a reply is overdue"), "answer")
        elif not self._connector.busy and now >= self._connect_at:
            self._connector.start(self.target, self.revive if self._failures >= 2 else None)

    def post(self, link: StoreConnection, commands: Sequence[Sequence[Any]], patience: float = 0.0) -> None:
        """Send commands; their replies may take ``patience`` seconds (0: as long as any)."""
        try:
            waited = bool(link.backlog)
            link.send(commands, patience or self.patience)
            if waited or link.backlog:
                self._watched.also_write(link, wanted=bool(link.backlog))
        except OSError as error:
            self.fail(error, "take a request")

    def received(self, link: StoreConnection, *, awaited: bool) -> list[Any]:
        """What has arrived on a connection; nothing while replies are not all there, or where it failed.

        Args:
            awaited: replies are. Without a question, only its end can have come, or what others write.
        """
        try:
            if link.backlog:
                link.flush()
                self._watched.also_write(link, wanted=bool(link.backlog))
            replies = link.receive() if awaited else link.heard()
        except (driver.RedisError, OSError) as error:
            self.fail(error, "answer")
            return []
        if replies is None:
            # A part came: large arguments over a slow line take longer than a reply may.
            link.deadline = max(link.deadline, time.monotonic() + self.patience)
        return replies or []

    def answered(self) -> None:
        """A request was answered without an error: the store works."""
        if self._failures:
            log.info("%s answers again", self.target.shown)
            self._failures = 0
            self._say_again.clear()

    def fail(self, error: Exception, doing: str) -> None:
        """Throw every connection away: a late reply must not answer another question.

        The next attempt comes after a pause, which grows until a request is answered: a server that can be connected
        to and refuses every request is no better than one that is gone.
        """
        made, self.made = self.made, None
        if made is not None:
            for link in made.all:
                self._watched.unwatch(link)
            made.close()
            self._lost()
        self._failures += 1
        now = time.monotonic()
        self._connect_at = now + pause_before(self._failures, random.random())
        private = self.revive is not None
        word = error if isinstance(error, HeadraceError) else verdict(error, self.target, doing, private=private)
        refused = isinstance(word, HeadraceError)
        text = str(word) if refused else f"the store does not answer ({error}); trying again"
        if now >= self._say_again.get(text, 0.0):
            if len(self._say_again) == MOST:
                self._say_again.clear()
            self._say_again[text] = now + AGAIN_AFTER
            level, code = (logging.ERROR, "store.refuses") if refused else (logging.WARNING, "store.away")
            log.log(level, "%s", text, extra={"code": code})

    def _on_connected(self) -> None:
        made = self._connector.take()
        if isinstance(made, Exception):
            self.fail(made, "be connected to")
            return
        self.made, self.target = made, made.target
        for link, handler in zip(made.all, self._handlers, strict=True):
            self._watched.watch(link, handler, urgent=True)
        self._connected(made)
