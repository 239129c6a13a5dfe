"""The cached values that a process keeps: bounded by count and bytes, each entry with an end. Pure.

The owner of a :class:`LocalStore` holds a lock. Readers use ``values`` without it, so each change of ``values`` is one
operation of a dictionary. :class:`Statistics` counts the use of a process's cache.
"""

from __future__ import annotations

import heapq
from typing import Any, Literal

import msgspec

Eviction = Literal["fifo", "sieve"]

# Bytes of an entry beside its value: name, place in the order, end.
OVERHEAD = 400
# A value may take at most this part of the budget, since it would push out all others.
SHARE = 4


class Entry(msgspec.Struct, eq=False):
    """One place in the order of entries, from the oldest to the newest."""

    name: str
    size: int
    end: float
    older: Entry | None = None
    newer: Entry | None = None


class Bounds(msgspec.Struct, frozen=True):
    entries: int
    bytes: int
    eviction: Eviction = "fifo"


class Marking(dict[str, Any]):
    """Values that record which of them were read, for eviction by SIEVE."""

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
        visited: names read since the hand last passed them; None unless eviction is by SIEVE. Reading ``values`` adds.
        bytes: estimated memory of all entries.
        evicted: number of entries that made room for others.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.visited: set[str] | None = set() if bounds.eviction == "sieve" else None
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
        self._entries: dict[str, Entry] = {}
        self._oldest: Entry | None = None
        self._newest: Entry | None = None
        self._hand: Entry | None = None
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
        self._unlink(entry)
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
            self.drop(self._victim().name)
            self.evicted += 1
        entry = self._entries[name] = Entry(name, size, end)
        entry.older, self._newest = self._newest, entry
        if entry.older is None:
            self._oldest = entry
        else:
            entry.older.newer = entry
        self.bytes += size
        self._made += 1
        heapq.heappush(self._ends, (end, self._made, entry))
        # Entries that went before their end leave theirs behind.
        if len(self._ends) > 2 * len(self._entries) + 64:
            self._ends = [row for row in self._ends if self._entries.get(row[2].name) is row[2]]
            heapq.heapify(self._ends)
        return entry

    def _victim(self) -> Entry:
        """The entry to evict: the oldest, or by SIEVE (NSDI 2024) the next one at the hand without a read since the
        hand passed it. A hit moves nothing, it leaves a mark.
        """
        assert self._oldest is not None
        if self.visited is None:
            return self._oldest
        entry = self._hand or self._oldest
        # Twice around at most: readers may leave marks as fast as they are taken.
        for _ in range(2 * len(self._entries)):
            if entry.name not in self.visited:
                break
            self.visited.discard(entry.name)
            entry = entry.newer or self._oldest
        self._hand = entry
        if len(self.visited) > 2 * len(self._entries) + 64:
            # A reader may mark a name after its entry was dropped.
            self.visited.intersection_update(self._entries)
        return entry

    def _unlink(self, entry: Entry) -> None:
        self.bytes -= entry.size
        if self._hand is entry:
            self._hand = entry.newer
        if entry.older is None:
            self._oldest = entry.newer
        else:
            entry.older.newer = entry.newer
        if entry.newer is None:
            self._newest = entry.older
        else:
            entry.newer.older = entry.older
        entry.older = entry.newer = None


class Statistics(msgspec.Struct, frozen=True):
    """Counters of one process.

    Attributes:
        hits: reads that took no round trip, "there is no value" included.
        misses: reads that asked the server.
        hit_ratio: hits among all reads, two digits; None before the first read.
        used: entries that are kept now.
        capacity: entries that may be kept.
        utilization: ``used`` of ``capacity``, two digits.
        bytes: memory that the entries take, estimated.
        capacity_bytes: memory that they may take.
        evicted: entries that had to make room. High beside a low ``hit_ratio``: the cache is too small. Where some
            names are read more often than others, ``cache_eviction="sieve"`` keeps those.
        announced: names that the server said were changed.
        epochs: connections so far; each began with an empty cache.
        faults: reads that went without an answer of the server, or met a value that cannot be read.
        healthy: changes are heard of. While they are not, nothing is kept and each read asks the server.
        fault: why they are not; empty when they are.
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
