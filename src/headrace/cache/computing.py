"""Which values this process computes, and which readers wait for them. Does no I/O, and computes no value itself.

1. :class:`Computations`: one reader of an absent value computes it; other readers wait for that one. A reader within a
   computation that would wait for this very computation computes the value again instead, since it would wait for
   ever.
2. :class:`ChangeWatchers`: reads that wait for a change of a name. Any thread may ask.
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
    """Something that happens once; whoever comes later need not wait."""

    __slots__ = ("_landed", "fired")

    def __init__(self) -> None:
        self.fired = False
        self._landed: list[Callable[[], object]] = []

    def subscribe(self, landed: Callable[[], object]) -> bool:
        """Have ``landed`` called when it happens, by whoever fires; False: it has happened."""
        self._landed.append(landed)
        return not self.fired

    def fire(self) -> None:
        """It happens now; again does nothing."""
        self.fired = True
        while self._landed:
            self._landed.pop()()


class Computation(msgspec.Struct, eq=False):
    """One value that is being computed.

    Attributes:
        name: of the value.
        tags: its own.
        number: counted up in the order of beginnings and of readers.
        ended: fires when it has ended; what follows is written before.
        value: what came of it.
        error: what was raised instead.
        made: whether something came of it, a value or an error; if not, its reader was interrupted.
        doubtful: the value changed meanwhile: good for those who came before it began.
        waits: for which other computations, by the reader who does within this one.
    """

    name: str
    tags: Sequence[str]
    number: int
    ended: OneTimeSignal = msgspec.field(default_factory=OneTimeSignal)
    value: Any = None
    error: Exception | None = None
    made: bool = False
    doubtful: bool = False
    waits: dict[CacheReader, Computation] = msgspec.field(default_factory=dict["CacheReader", "Computation"])

    def serves(self, reader: CacheReader) -> bool:
        """Whether what came of it may be given to this reader, who waited for it."""
        return self.made and (not self.doubtful or self.number > reader.number)


class CacheReader(msgspec.Struct, frozen=True, eq=False):
    """One who asks for a value.

    Attributes:
        number: counted up in the order of beginnings and of readers.
        within: the computations that surround him, the innermost last.
    """

    number: int
    within: tuple[Computation, ...]


# The computations that surround what runs here, the innermost last; tasks and threads of asyncio inherit it.
_within: ContextVar[tuple[Computation, ...]] = ContextVar("headrace-cache-within", default=())


class Computations:
    """Those of one process."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget the parent's: its threads are not here."""
        self._lock = threading.Lock()
        self._current: dict[str, Computation] = {}

    def reader(self) -> CacheReader:
        """One who has found no value."""
        return CacheReader(next(self._numbers), _within.get())

    def join(self, name: str, tags: Sequence[str], reader: CacheReader, *, may_wait: bool) -> tuple[Computation, bool]:
        """The computation of this name, and whether the reader leads it: then he computes; else he waits, and leaves.

        Args:
            may_wait: False for one who holds up an event loop, on which the others may depend.
        """
        with self._lock:
            current = self._current.get(name)
            if current is not None and may_wait and not _reaches(current, reader.within):
                if reader.within:
                    reader.within[-1].waits[reader] = current
                return current, False
            mine = Computation(name, tags, next(self._numbers))
            if current is None:
                self._current[name] = mine
            return mine, True

    def leave(self, reader: CacheReader) -> None:
        """A reader waits no longer."""
        if reader.within:
            reader.within[-1].waits.pop(reader, None)

    @contextmanager
    def leading(self, computation: Computation) -> Generator[None, None, None]:
        """Compute within the block. An exception is for those who wait, too; an interrupt is for this reader alone."""
        _within.set((*_within.get(), computation))
        try:
            yield
        except Exception as error:
            computation.error, computation.made = error, True
            raise
        finally:
            self.retire(computation)
            computation.ended.fire()
            # No token: closed by a collection of garbage, it ends in another context.
            _within.set(tuple(one for one in _within.get() if one is not computation))

    def retire(self, computation: Computation) -> None:
        """Whoever comes from now on does not join it."""
        with self._lock:
            if self._current.get(computation.name) is computation:
                del self._current[computation.name]

    def retire_names(self, names: Iterable[str]) -> None:
        """This process has changed these values: see :meth:`retire`."""
        for name in names:
            if (current := self._current.get(name)) is not None:
                self.retire(current)

    def retire_tag(self, tag: str | None) -> None:
        """This process has deleted a tag, or everything."""
        for current in list(self._current.values()):
            if tag is None or tag in current.tags:
                self.retire(current)


def _reaches(start: Computation, goals: Sequence[Computation]) -> bool:
    """Whether a computation is one of these, or waits for one, or for what waits for one. Lock held."""
    seen: set[Computation] = set()
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
