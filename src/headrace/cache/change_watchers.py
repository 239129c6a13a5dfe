"""What is told of changes: hooks of the application, and reads that wait. Any thread may ask."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from headrace.cache.computing import OneTimeSignal


class ChangeWatchers:
    """See the module.

    Attributes:
        hooks: by name, what is called when it may have changed: by the listening thread, and must not wait.
    """

    def __init__(self) -> None:
        self.hooks: dict[str, Callable[[], object]] = {}
        self._expected: dict[str, list[OneTimeSignal]] = {}
        self._lock = threading.Lock()

    def expect(self, name: str) -> OneTimeSignal:
        """What fires when this name may have changed after a read of it that departs from now on."""
        signal = OneTimeSignal()
        with self._lock:
            self._expected.setdefault(name, []).append(signal)
        return signal

    def unexpect(self, name: str, signal: OneTimeSignal) -> None:
        """Nothing waits for this any more."""
        with self._lock:
            signals = self._expected.get(name, [])
            if signal in signals:
                signals.remove(signal)
            if not signals:
                self._expected.pop(name, None)

    def tell(self, names: Sequence[str]) -> None:
        """These may have changed."""
        for name in names:
            if name in self.hooks:
                self.hooks[name]()
            with self._lock:
                signals = self._expected.pop(name, [])
            for signal in signals:
                signal.fire()

    def tell_all(self) -> None:
        """Any may have changed."""
        with self._lock:
            names = [*self.hooks, *self._expected]
        self.tell(names)

    def begin_anew(self) -> None:
        """This is a fork: nothing waits here, and whatever held the lock is not here."""
        self.hooks.clear()
        self._expected, self._lock = {}, threading.Lock()
