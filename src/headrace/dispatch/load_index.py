"""Members by load: the least loaded one is read in O(1), not searched for. Owns no member and no lock.

A heap with late deletion (the usual companion of :mod:`heapq`): a change pushes a new entry, and the old one is thrown
away when it comes up. The writer leaves a valid entry on top, so that a reader only looks, and needs no lock.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, Protocol, TypeVar


class Named(Protocol):
    """What can be ranked, and found by key: anything with an identity that outlives a restart."""

    @property
    def id(self) -> Hashable: ...


M = TypeVar("M", bound=Named)


class Ranks(Generic[M]):
    """Members and their loads; equal loads are ordered by who changed longest ago, so that work is spread.

    One writer at a time; any number of readers, which may see a load that is one change old.
    """

    __slots__ = ("_current", "_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, M]] = []
        # The number of each ranked member's valid entry, by the member's id.
        self._current: dict[Hashable, int] = {}
        self._number = count()

    def set(self, member: M, load: float) -> None:
        """Rank a member, new or known. Cost: O(log members)."""
        number = next(self._number)
        self._current[member.id] = number
        heap = self._heap
        heappush(heap, (load, number, member))
        top = heap[0]
        # The new entry on top needs no look at the others.
        if top[1] != number or len(heap) > 64:
            self._clean()

    def remove(self, member: M) -> None:
        """Rank a member no longer: it is away, or gone. Unknown ones are ignored."""
        if self._current.pop(member.id, None) is not None:
            self._clean()

    def least(self) -> M | None:
        """The member with the smallest load; None when nobody is ranked. Cost: O(1)."""
        try:
            return self._heap[0][2]
        except IndexError:
            return None

    def idle(self) -> M | None:
        """A member without any load; None when there is none. Cost: O(1)."""
        try:
            load, _, member = self._heap[0]
        except IndexError:
            return None
        return None if load else member

    def __contains__(self, member: M) -> bool:
        return member.id in self._current

    def __len__(self) -> int:
        return len(self._current)

    def _clean(self) -> None:
        heap, current = self._heap, self._current
        while heap and current.get(heap[0][2].id) != heap[0][1]:
            heappop(heap)
        # Old entries below the top of a heap whose top never changes would gather for ever.
        if len(heap) > 64 and len(heap) > 4 * len(current):
            valid = [entry for entry in heap if current.get(entry[2].id) == entry[1]]
            heapify(valid)
            self._heap = valid
