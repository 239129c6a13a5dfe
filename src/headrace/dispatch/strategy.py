"""Strategies: plain functions that choose a member from an immutable snapshot. They hold nothing and lock nothing.

Who owns the members publishes a new :class:`Snapshot` by one reference assignment; a reader uses the one that it got.
What is live in it, the counter and the ranks, can be read at any moment. Members are any objects with an ``id``; loads
are numbers that their owner tells the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from random import random as _dice
from typing import Any, Generic

from headrace.dispatch.hash_ring import Key, Ring, slot
from headrace.dispatch.load_index import M, Ranks
from headrace.errors import OptionsError, PoolBusy, PoolClosed


class Snapshot(Generic[M]):
    """The members at one moment.

    Attributes:
        members: all of them, in a fixed order, those included that are away because they are being restarted.
        size: how many.
        ranks: those that are there, by load; live. Who is not in it is away.
        turn: the next number of a counter that all snapshots of one owner share; one atomic step of the interpreter.
    """

    __slots__ = ("_ring", "members", "ranks", "size", "turn")

    def __init__(self, members: tuple[M, ...], ranks: Ranks[M], turn: Callable[[], int] | None = None) -> None:
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


# None from a strategy: nobody may have it now; it waits in the central queue for the first who is free.
Strategy = Callable[[Snapshot[M], Key | None], M | None]


def least_loaded(snapshot: Snapshot[M], _key: Key | None = None) -> M | None:
    """The member with the fewest calls, running and waiting ones together; never refuses."""
    return snapshot.ranks.least() or round_robin_of_all(snapshot)


def round_robin(snapshot: Snapshot[M], _key: Key | None = None) -> M | None:
    """Each member in turn; never refuses, and may let a call wait behind a slow one."""
    members = snapshot.members
    if not members:
        raise no_members()
    member = members[snapshot.turn() % snapshot.size]
    return member if member in snapshot.ranks else least_loaded(snapshot)


def random(snapshot: Snapshot[M], _key: Key | None = None) -> M | None:
    """Any member, each as likely as the others; never refuses."""
    members = snapshot.members
    if not members:
        raise no_members()
    member = members[int(_dice() * snapshot.size)]
    return member if member in snapshot.ranks else least_loaded(snapshot)


def available(snapshot: Snapshot[M], _key: Key | None = None) -> M | None:
    """A member that is free; None when nobody is, and the call waits centrally for the first who will be."""
    return snapshot.ranks.idle()


def next_available(snapshot: Snapshot[M], _key: Key | None = None) -> M | None:
    """A member that is free.

    Raises:
        PoolBusy: nobody is.
    """
    member = snapshot.ranks.idle()
    if member is None:
        raise nobody_free(snapshot.members)
    return member


def hash(snapshot: Snapshot[M], key: Key | None = None) -> M | None:  # noqa: A001 - the strategy's public name
    """The member to which the key belongs; of n members, one more moves about 1/(n+1) of the keys.

    It waits for its member even while that is away: another one would break the order of a key's calls.
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
    """The function of this name, or the callable itself.

    Raises:
        OptionsError: there is no strategy of this name.
    """
    if callable(strategy):
        return strategy
    found = STRATEGIES.get(strategy)
    if found is None:
        raise OptionsError(f"no strategy {strategy!r}; there are {', '.join(sorted(STRATEGIES))}, or pass a function")
    return found


def no_members() -> PoolClosed:
    return PoolClosed("the pool has no members: it was not started, or it was shut down")


def nobody_free(members: Sequence[object]) -> PoolBusy:
    away = sum(bool(getattr(member, "away", False)) for member in members)
    busy, again = len(members) - away, f"{away} of {len(members)} members are being replaced"
    what = (
        again if not busy else f"all {busy} members are busy" if not away else f"{busy} members are busy, and {again}"
    )
    return PoolBusy(f'{what}; call again later, or let it wait with strategy="available"')
