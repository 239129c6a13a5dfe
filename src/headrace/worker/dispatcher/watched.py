"""What a dispatcher's loop waits for: readable descriptors, each with its handler."""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Callable
from typing import Any


class Selectors:
    """What the loop waits for: ``all`` that it listens to, and ``urgent``, the part that is not runners."""

    def __init__(self) -> None:
        self.all = selectors.DefaultSelector()
        self.urgent = selectors.DefaultSelector()

    def watch(self, source: Any, handler: Callable[[], None], *, urgent: bool = False) -> None:
        self.all.register(source, selectors.EVENT_READ, handler)
        if urgent:
            self.urgent.register(source, selectors.EVENT_READ, handler)

    def unwatch(self, source: Any) -> None:
        for selector in (self.all, self.urgent):
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(source)

    def also_write(self, source: Any, *, wanted: bool) -> None:
        """Call the handler, too, when the source has room for more (or no longer)."""
        key = self.all.get_key(source)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
        if key.events != events:
            self.all.modify(source, events, key.data)

    def select(self, pause: float, gather: float) -> list[Callable[[], None]]:
        """The handlers of what is ready; with ``gather``, what runners say may wait that many seconds."""
        if gather:
            self.urgent.select(gather)
            pause = 0.0
        # A process that was stopped (SIGSTOP) for longer than the pause has not looked, and replies would look overdue.
        return [key.data for key, _ in self.all.select(pause) or self.all.select(0.0)]
