"""The places of one kind's runners: what strategies choose among. A place outlives the runners that fill it.

Owns the published snapshot and the ranks of one kind. Decides nothing about jobs; a runner that dies or is replaced
leaves its place, and with it what waits there, to the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from headrace.dispatch.load_index import Ranks
from headrace.dispatch.strategy import Snapshot
from headrace.model.options import Kind
from headrace.worker.dispatcher.runners.runner_handle import Place

# Above every load: whoever makes no progress, or holds a suspect, is chosen last.
LAST = float("inf")
# What a job adds to a load besides its cost, so that whoever holds one of no cost is not idle.
ONE = 1e-9
# Seconds beyond every load: a runner without a free slot ranks behind all that have one. One that is full of tiny jobs
# has less of a load than one that runs a slow job, and would hide its free slots.
FULL = 1e6


class Places:
    """Those of one kind.

    Attributes:
        snapshot: what strategies see; replaced as a whole when the size changes.
        ranks: those with a runner that takes work, by load.
    """

    __slots__ = ("_turn", "kind", "ranks", "snapshot")

    def __init__(self, kind: Kind) -> None:
        self.kind: Kind = kind
        self.ranks: Ranks[Place] = Ranks()
        self._turn: Callable[[], int] = count().__next__
        self.snapshot: Snapshot[Place] = Snapshot((), self.ranks, self._turn)

    def resize(self, size: int) -> list[Place]:
        """Have so many places; those that are left out, which are no longer chosen."""
        members = self.snapshot.members
        stay, gone = members[:size], members[size:]
        new = tuple(Place(number, self.kind) for number in range(len(stay), size))
        self.snapshot = Snapshot((*stay, *new), self.ranks, self._turn)
        for place in gone:
            place.leaving = True
            self.ranks.remove(place)
        return list(gone)

    def vacant(self) -> Place | None:
        """A place that a new runner may fill."""
        return next((place for place in self.snapshot.members if place.handle is None), None)

    def reindex(self, place: Place) -> None:
        """Rank a place by what its runner holds now and what waits for it. Cost: O(log places)."""
        if place.leaving:
            # It is ranked no longer, and another place may have its number by now.
            return
        handle = place.handle
        if handle is None or not handle.ready:
            self.ranks.remove(place)
            return
        held = len(handle.starts) + len(place.line)
        place.rank = LAST if handle.suspect else handle.load + place.queued + held * ONE if held else 0.0
        self.ranks.set(place, place.rank + FULL if held >= handle.slots else place.rank)

    def demote(self, place: Place) -> None:
        """Choose it last, until it is weighed again."""
        place.rank = LAST
        self.ranks.set(place, LAST)
