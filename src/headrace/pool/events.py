"""Callbacks and overrun handlers, called in a thread of their own: slow or broken ones hold nobody up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any

from headrace.errors import OptionsError
from headrace.pool.overrun import Alert
from headrace.pool.pool_options import Handler

log = logging.getLogger("headrace.pool")


class Callbacks:
    """What a callback object may have; it needs only one of these, and need not derive from this class."""

    def on_start(self, pool: str) -> None:
        """The pool is about to start its members."""

    def on_member(self, pool: str, member: int) -> None:
        """A member, new or restarted, is ready."""

    def on_death(self, pool: str, member: int, reason: str) -> None:
        """A member ended: ``left`` when it was removed or the pool shut down, else what killed it."""


NAMES = tuple(name for name in vars(Callbacks) if name.startswith("on_"))


class Events:
    """The callbacks and handlers of one pool."""

    def __init__(self, pool: str, callbacks: Iterable[object], handlers: Iterable[Handler] | None) -> None:
        self._pool = pool
        self._callbacks: tuple[object, ...] = ()
        self._handlers: tuple[Handler, ...] = (_warn,) if handlers is None else tuple(handlers)
        self._queue: SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        for callback in callbacks:
            if knows_none(callback):
                log.warning("%s: %r has none of %s; it will never be called", pool, callback, ", ".join(NAMES))
            self._callbacks += (callback,)

    def add(self, callback: object) -> None:
        """Tell one more object.

        Raises:
            OptionsError: it has none of the methods.
        """
        if knows_none(callback):
            raise OptionsError(f"{callback!r} has none of {', '.join(NAMES)}: give it one of them")
        with self._lock:
            self._callbacks += (callback,)

    def remove(self, callback: object) -> None:
        """Tell this object no longer; unknown ones are ignored."""
        with self._lock:
            self._callbacks = tuple(known for known in self._callbacks if known is not callback)

    def add_handler(self, handler: Handler) -> None:
        with self._lock:
            self._handlers += (handler,)

    def tell(self, name: str, *details: object) -> None:
        """Let every callback know; returns at once."""
        for callback in self._callbacks:
            method = getattr(callback, name, None)
            if method is not None:
                self._post(method, (self._pool, *details))

    def alert(self, alert: Alert) -> None:
        """Let every overrun handler know; returns at once."""
        for handler in self._handlers:
            self._post(handler, (alert,))

    def close(self) -> None:
        """Whatever was told before is still delivered."""
        with self._lock:
            if self._thread is not None:
                self._queue.put(None)
                self._thread = None

    def _post(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        with self._lock:
            self._queue.put((function, arguments))
            if self._thread is None:
                self._thread = threading.Thread(target=self._deliver, name=f"{self._pool}-events", daemon=True)
                self._thread.start()

    def _deliver(self) -> None:
        while (item := self._queue.get()) is not None:
            function, arguments = item
            try:
                function(*arguments)
            except Exception:
                log.warning("%s: the callback %r failed", self._pool, function, exc_info=True)


def knows_none(callback: object) -> bool:
    return not any(callable(getattr(callback, name, None)) for name in NAMES)


def _warn(alert: Alert) -> None:
    what = "is killed for it" if alert.kind == "limit" else "goes on"
    log.warning(
        "%s: %s has run for %.3g s on member %d, which %s", alert.pool, alert.call, alert.seconds, alert.member, what
    )
