"""Reads that wait for a change of a name. Any thread may ask."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from headrace.cache.computing import OneTimeSignal


class ChangeWatchers:
    """See the module."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """In a fork nothing waits, and whatever held the lock is not here."""
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
            with self._lock:
                signals = self._expected.pop(name, [])
            for signal in signals:
                signal.fire()

    def tell_all(self) -> None:
        """Any may have changed."""
        with self._lock:
            names = list(self._expected)
        self.tell(names)
