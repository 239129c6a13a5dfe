"""Strategies: plain functions that choose a member from an immutable snapshot. They hold nothing and lock nothing.

The owner of the members publishes a new :class:`Snapshot` by one reference assignment. Its counter and its ranks are
live. The ranks are a heap with late deletion: the writer leaves a valid entry on top, so a reader needs no lock.

On the ring, each member owns ``POINTS`` points on a circle of 32 bits, and a key belongs to the next point after its
own. One member more among n takes about 1/(n+1) of the keys, and no key moves between the others (Karger et al., 1997).
The circle is cut into ``SLOTS`` once, so that an owner is found by one look into a list.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterable, Sequence
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from itertools import count
from random import random as _dice
from typing import Any, Generic, Protocol, TypeVar
from zlib import crc32

from headrace.errors import ClosedError, OptionsError, PoolFull


class Named(Protocol):
    """What can be ranked, and found by key: anything with an identity that outlives a restart."""

    @property
    def id(self) -> Hashable: ...


M = TypeVar("M", bound=Named)


class LoadIndex(Generic[M]):
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
        """The member with the smallest load; None when no member is ranked. Cost: O(1)."""
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


Key = str | bytes | int

# 128 points keep the busiest of ten members within about a quarter of the mean.
POINTS = 128
# Always the same number: if it grew with the members, keys would move between those that stay.
SLOTS = 1 << 16
_PER_DIGEST = struct.Struct("!16I")


def slot(key: Key) -> int:
    """Where a key lies on the circle: the same in every process, on every machine, for ever. Python's own ``hash`` of a
    text differs between processes. Raises OptionsError: the key is neither a text, bytes nor an integer.
    """
    if isinstance(key, str):
        check = crc32(key.encode())
    elif isinstance(key, bytes):
        check = crc32(key)
    elif isinstance(key, int):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        check = crc32(b"%d" % key)
    else:
        raise OptionsError(f"a key is a text, bytes or an integer, not {type(key).__name__}: pass one that names it")
    return (check ^ check >> 16) & 0xFFFF


class Ring(Generic[M]):
    """An immutable circle of members."""

    __slots__ = ("owners",)

    def __init__(self, members: Iterable[M]) -> None:
        """Cost: O(members log members + SLOTS); a few milliseconds for a hundred."""
        owned: dict[int, M] = {}
        for member in members:
            for part in range(POINTS // 16):
                digest = blake2b(f"{member.id}/{part}".encode()).digest()
                # Where two points fall together the same one wins, whatever the order of the members.
                for place in _PER_DIGEST.unpack(digest):
                    if place not in owned or str(member.id) < str(owned[place].id):
                        owned[place] = member
        places = sorted(owned)
        self.owners: list[M] = []
        for place in places:
            # A slot belongs to the first point at or after its beginning.
            self.owners += [owned[place]] * ((place >> 16) + 1 - len(self.owners))
        # The last point's successor is the first one: the circle closes.
        self.owners += [owned[places[0]]] * (SLOTS - len(self.owners))

    def owner(self, key: Key) -> M:
        """The member that this key belongs to. Cost: O(1)."""
        return self.owners[slot(key)]


class Snapshot(Generic[M]):
    """The members at one moment.

    Attributes:
        members: all of them, in a fixed order, those included that are away because they are being restarted.
        size: how many.
        ranks: those that are there, by load; live. Who is not in it is away.
        turn: the next number of a counter that all snapshots of one owner share; one atomic step of the interpreter.
    """

    __slots__ = ("_ring", "members", "ranks", "size", "turn")

    def __init__(self, members: tuple[M, ...], ranks: LoadIndex[M], turn: Callable[[], int] | None = None) -> None:
        self.members = members
        self.size = len(members)
        self.ranks = ranks
        self.turn = turn or count().__next__
        self._ring: Ring[M] | None = None

    @property
    def ring(self) -> Ring[M]:
        """The circle of consistent hashing; made at first use, since most pools never hash."""
        ring = self._ring
        if ring is None:
            # Two threads may both make it; they make the same.
            ring = self._ring = Ring(self.members)
        return ring


# None from a strategy: no member may have it now; it waits in the central queue for the first who is free.
Strategy = Callable[[Snapshot[M], Key | None], M | None]


def least_loaded(snapshot: Snapshot[M], _key: Key | None = None) -> M | None:
    """The member with the fewest calls, running and waiting ones together; never refuses."""
    return snapshot.ranks.least() or round_robin_of_all(snapshot)


def round_robin(snapshot: Snapshot[M], _key: Key | None = None) -> M | None:
    """Each member in turn; never refuses, and may let a call wait behind a slow one."""
    member = round_robin_of_all(snapshot)
    return member if member in snapshot.ranks else least_loaded(snapshot)


def random(snapshot: Snapshot[M], _key: Key | None = None) -> M | None:
    """Any member, each as likely as the others; never refuses."""
    members = snapshot.members
    if not members:
        raise no_members()
    member = members[int(_dice() * snapshot.size)]
    return member if member in snapshot.ranks else least_loaded(snapshot)


def available(snapshot: Snapshot[M], _key: Key | None = None) -> M | None:
    """A member that is free; None when none is, and the call waits centrally for the first who will be."""
    return snapshot.ranks.idle()


def next_available(snapshot: Snapshot[M], _key: Key | None = None) -> M | None:
    """A member that is free. Raises PoolFull: no member is free."""
    member = snapshot.ranks.idle()
    if member is None:
        raise nobody_free(snapshot.members)
    return member


def hash(snapshot: Snapshot[M], key: Key | None = None) -> M | None:  # noqa: A001 - the strategy's public name
    """The member to which the key belongs; of n members, one more moves about 1/(n+1) of the keys. It waits for its
    member even while that is away: another one would break the order of a key's calls.
    """
    if key is None:
        raise OptionsError('strategy "hash" needs key=: calls of one key run on one member, in order')
    if not snapshot.members:
        raise no_members()
    return snapshot.ring.owners[slot(key)]


def round_robin_of_all(snapshot: Snapshot[M]) -> M:
    """A member even while all are away: they come back."""
    if not snapshot.members:
        raise no_members()
    return snapshot.members[snapshot.turn() % snapshot.size]


STRATEGIES: dict[str, Strategy[Any]] = {
    function.__name__: function for function in (available, hash, least_loaded, next_available, random, round_robin)
}


def named(strategy: str | Strategy[M]) -> Strategy[M]:
    """The function of this name, or the callable itself. Raises OptionsError: there is no strategy of this name."""
    if callable(strategy):
        return strategy
    found = STRATEGIES.get(strategy)
    if found is None:
        raise OptionsError(f"no strategy {strategy!r}; there are {', '.join(sorted(STRATEGIES))}, or pass a function")
    return found


def no_members() -> ClosedError:
    return ClosedError("the pool has no members: it was not started, or it was shut down")


def nobody_free(members: Sequence[object]) -> PoolFull:
    away = sum(bool(getattr(member, "away", False)) for member in members)
    busy, again = len(members) - away, f"{away} of {len(members)} members are being replaced"
    what = (
        again if not busy else f"all {busy} members are busy" if not away else f"{busy} members are busy, and {again}"
    )
    return PoolFull(f'{what}; call again later, or let it wait with strategy="available"')
