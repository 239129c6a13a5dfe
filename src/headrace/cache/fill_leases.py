"""The values that this process computes now, and the readers that wait for them. Does no I/O and computes no value.

One reader of an absent value computes it, and other readers wait for it. A reader that would wait for a fill that it
runs in itself computes the value again, since it would wait for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any

import msgspec


class OneTimeSignal:
    """An event that happens once. Later subscribers learn that it has happened."""

    __slots__ = ("_callbacks", "fired")

    def __init__(self) -> None:
        self.fired = False
        self._callbacks: list[Callable[[], object]] = []

    def subscribe(self, on_end: Callable[[], object]) -> bool:
        """Call ``on_end`` in the thread that fires; False: the event has happened."""
        self._callbacks.append(on_end)
        return not self.fired

    def fire(self) -> None:
        self.fired = True
        while self._callbacks:
            self._callbacks.pop()()


class Fill(msgspec.Struct, eq=False):
    """A value that is being computed.

    Attributes:
        number: position in the common order of fills and readers.
        ended: fires at the end; the attributes below are set before.
        error: the exception that was raised instead of a value.
        made: there is a value or an error; False: the reader that computed was interrupted.
        doubtful: the value changed meanwhile, so it serves only readers that came before the fill began.
        waits: other fills that readers within this one wait for, by reader.
    """

    name: str
    tags: Sequence[str]
    number: int
    ended: OneTimeSignal = msgspec.field(default_factory=OneTimeSignal)
    value: Any = None
    error: Exception | None = None
    made: bool = False
    doubtful: bool = False
    waits: dict[CacheReader, Fill] = msgspec.field(default_factory=dict["CacheReader", "Fill"])

    def serves(self, reader: CacheReader) -> bool:
        return self.made and (not self.doubtful or self.number > reader.number)


class CacheReader(msgspec.Struct, frozen=True, eq=False):
    """A read that found no value; ``within``: the fills that surround it, the innermost last."""

    number: int
    within: tuple[Fill, ...]


# The fills that surround the current code, the innermost last. Tasks and threads of asyncio inherit it.
_within: ContextVar[tuple[Fill, ...]] = ContextVar("headrace-cache-within", default=())


class FillLeases:
    def __init__(self) -> None:
        self._numbers = count(1)
        self.begin_anew()

    def begin_anew(self) -> None:
        """In a forked child: forget the parent's fills, whose threads are not here."""
        self._lock = threading.Lock()
        self._current: dict[str, Fill] = {}

    def reader(self) -> CacheReader:
        return CacheReader(next(self._numbers), _within.get())

    def join(self, name: str, tags: Sequence[str], reader: CacheReader, *, may_wait: bool) -> tuple[Fill, bool]:
        """The fill of this name, and whether the reader leads it. A leader computes; others wait, then ``leave``. A
        reader that blocks an event loop may not wait: the fill may depend on it.
        """
        with self._lock:
            current = self._current.get(name)
            if current is not None and may_wait and not _reaches(current, reader.within):
                if reader.within:
                    reader.within[-1].waits[reader] = current
                return current, False
            mine = Fill(name, tags, next(self._numbers))
            if current is None:
                self._current[name] = mine
            return mine, True

    def leave(self, reader: CacheReader) -> None:
        if reader.within:
            reader.within[-1].waits.pop(reader, None)

    @contextmanager
    def leading(self, fill: Fill) -> Generator[None, None, None]:
        """Compute within the block. Waiting readers get an exception too; an interrupt ends this reader alone."""
        _within.set((*_within.get(), fill))
        try:
            yield
        except Exception as error:
            fill.error, fill.made = error, True
            raise
        finally:
            self.retire(fill)
            fill.ended.fire()
            # Not reset by a token: a generator that garbage collection closes ends in another context.
            _within.set(tuple(one for one in _within.get() if one is not fill))

    def retire(self, fill: Fill) -> None:
        with self._lock:
            if self._current.get(fill.name) is fill:
                del self._current[fill.name]

    def retire_names(self, names: Iterable[str]) -> None:
        for name in names:
            if (current := self._current.get(name)) is not None:
                self.retire(current)

    def retire_tag(self, tag: str | None) -> None:
        """Retire the fills of a deleted tag; None: all."""
        for current in list(self._current.values()):
            if tag is None or tag in current.tags:
                self.retire(current)


def _reaches(start: Fill, goals: Sequence[Fill]) -> bool:
    seen: set[Fill] = set()
    todo = [start] if goals else []
    while todo:
        one = todo.pop()
        if one in goals:
            return True
        if one not in seen:
            seen.add(one)
            todo += list(one.waits.values())
    return False


class ChangeWatchers:
    """Signals by name, fired when the name may have changed."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """In a forked child: nothing waits, and no thread holds the lock."""
        self._expected: dict[str, list[OneTimeSignal]] = {}
        self._lock = threading.Lock()

    def expect(self, name: str) -> OneTimeSignal:
        signal = OneTimeSignal()
        with self._lock:
            self._expected.setdefault(name, []).append(signal)
        return signal

    def unexpect(self, name: str, signal: OneTimeSignal) -> None:
        with self._lock:
            signals = self._expected.get(name, [])
            if signal in signals:
                signals.remove(signal)
            if not signals:
                self._expected.pop(name, None)

    def notify(self, names: Sequence[str]) -> None:
        for name in names:
            with self._lock:
                signals = self._expected.pop(name, [])
            for signal in signals:
                signal.fire()

    def notify_all(self) -> None:
        with self._lock:
            names = list(self._expected)
        self.notify(names)
