"""The cached values that a process keeps or computes: bounded by count and bytes, each with an end. Does no I/O.

The owner of a :class:`LocalStore` holds a lock. Readers use ``values`` without it, so each change of ``values`` is one
operation of a dictionary. :class:`Statistics` counts the use of a process's cache.

One reader of an absent value computes it, and other readers wait for it. A reader that would wait for a fill that it
runs in itself computes the value again, since it would wait for ever.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any, Literal

import msgspec

Eviction = Literal["fifo", "second_chance"]

# Bytes of an entry beside its value: name, place in the order, end.
OVERHEAD = 400
# A value may take at most this part of the budget, since it would push out all others.
SHARE = 4


class Entry(msgspec.Struct, eq=False):
    name: str
    size: int
    end: float


class Bounds(msgspec.Struct, frozen=True):
    entries: int
    bytes: int
    eviction: Eviction = "fifo"


class Marking(dict[str, Any]):
    """Values that record which of them were read, so that these get a second chance."""

    __slots__ = ("_visited",)

    def __init__(self, visited: set[str]) -> None:
        super().__init__()
        self._visited = visited

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        self._visited.add(name)
        return value


class LocalStore:
    """Local copies by name.

    Attributes:
        values: read by readers without the lock; ``absent``: names that the server has no value for.
        visited: names read since they came or had a second chance; None where none is given. Reading ``values`` adds.
        bytes: estimated memory of all entries.
        evicted: number of entries that made room for others.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.visited: set[str] | None = set() if bounds.eviction != "fifo" else None
        self.values: dict[str, Any] = {} if self.visited is None else Marking(self.visited)
        self.absent: dict[str, None] = {}
        self.evicted = 0
        self.clear()

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        self.values.clear()
        self.absent.clear()
        if self.visited is not None:
            self.visited.clear()
        self.bytes = 0
        # From the oldest to the newest. Not a dict, which searches for its first key past all that went before it.
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._ends: list[tuple[float, int, Entry]] = []
        self._made = 0

    def visit(self, name: str) -> None:
        if self.visited is not None:
            self.visited.add(name)

    def put(self, name: str, value: Any, size: int, end: float) -> bool:
        entry = self._admit(name, size, end)
        if entry is not None:
            self.values[name] = value
        return entry is not None

    def put_absent(self, name: str, end: float) -> None:
        if self._admit(name, 0, end) is not None:
            self.absent[name] = None

    def drop(self, name: str) -> bool:
        entry = self._entries.pop(name, None)
        if entry is None:
            return False
        self.values.pop(name, None)
        self.absent.pop(name, None)
        if self.visited is not None:
            self.visited.discard(name)
        self.bytes -= entry.size
        return True

    def next_end(self) -> float | None:
        while self._ends and self._entries.get(self._ends[0][2].name) is not self._ends[0][2]:
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def expire(self, now: float) -> None:
        while (end := self.next_end()) is not None and end <= now:
            self.drop(heapq.heappop(self._ends)[2].name)

    def _admit(self, name: str, size: int, end: float) -> Entry | None:
        self.drop(name)
        size += OVERHEAD + len(name)
        if size * SHARE > self.bounds.bytes:
            return None
        while self._entries and (len(self._entries) >= self.bounds.entries or self.bytes + size > self.bounds.bytes):
            self.drop(self._victim())
            self.evicted += 1
        entry = self._entries[name] = Entry(name, size, end)
        self.bytes += size
        self._made += 1
        heapq.heappush(self._ends, (end, self._made, entry))
        # Entries that went before their end leave theirs behind.
        if len(self._ends) > 2 * len(self._entries) + 64:
            self._ends = [row for row in self._ends if self._entries.get(row[2].name) is row[2]]
            heapq.heapify(self._ends)
        return entry

    def _victim(self) -> str:
        """The oldest that was not read since it came or was spared before; one that was read becomes the newest."""
        marked, oldest = self.visited, next(iter(self._entries))
        if marked is None:
            return oldest
        # Once around at most: readers may leave marks as fast as they are taken.
        for _ in range(len(self._entries)):
            if oldest not in marked:
                break
            marked.discard(oldest)
            self._entries.move_to_end(oldest)
            oldest = next(iter(self._entries))
        if len(marked) > 2 * len(self._entries) + 64:
            # A reader may mark a name after its entry was dropped.
            marked.intersection_update(self._entries)
        return oldest


class Statistics(msgspec.Struct, frozen=True):
    """Counters of one process.

    Attributes:
        hits: reads that took no round trip, "there is no value" included; ``misses``: reads that asked the server.
        hit_ratio: hits among all reads, two digits; None before the first read.
        used: entries that are kept now, of ``capacity``; ``utilization``: the share, two digits.
        bytes: memory that the entries take, estimated, of ``capacity_bytes``.
        evicted: entries that had to make room. High beside a low ``hit_ratio``: the cache is too small. Where some
            names are read more often than others, ``cache_eviction="second_chance"`` keeps those.
        announced: names that the server said were changed.
        epochs: connections so far; each began with an empty cache.
        faults: reads that went without an answer of the server, or met a value that cannot be read.
        healthy: changes are heard of. If not, ``fault`` says why, nothing is kept and each read asks the server.
    """

    hits: int
    misses: int
    hit_ratio: float | None
    used: int
    capacity: int
    utilization: float
    bytes: int
    capacity_bytes: int
    evicted: int
    announced: int
    epochs: int
    faults: int
    healthy: bool
    fault: str


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
