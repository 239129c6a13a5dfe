"""Jobs that wait in a worker for one place: those with a key, and broadcasts. Sends nothing.

Owns the lines of all places and the homes of keys. Waiting jobs are claimed: the lease of the dispatcher covers
them, a shutdown hands them back, and their number is bounded by not claiming (``MOST``). Jobs that have limits do not
wait here, since other jobs would wait for the places in limits that these hold.

A key has a *home* while jobs of it are in the worker: all of them go to one place, so that a resize lets no later one
overtake. Where a place runs several at once (threads, coroutines), and where it is being removed, the next of a key
joins it only when the one before has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from headrace.model.job import Claim
from headrace.model.options import Kind
from headrace.worker.dispatcher.assignment import Assignment, Attempt, RunnerSlot, Waiting, place_of
from headrace.worker.worker_options import SHARED

# While this many jobs wait, no others are claimed.
MOST = 100


class Home:
    """Where the jobs of one key are.

    Attributes:
        place: where those are that joined it; ``inside``: how many of them wait or run there.
        waiting: those that may not join them yet, oldest first.
    """

    __slots__ = ("inside", "key", "place", "waiting")

    def __init__(self, key: tuple[Kind, str]) -> None:
        self.key = key
        self.place: RunnerSlot | None = None
        self.inside = 0
        self.waiting: deque[Waiting] = deque()

    @property
    def closed(self) -> bool:
        place = self.place
        return self.inside > 0 and place is not None and (place.leaving or place.kind in SHARED)


class LocalQueues:
    """What waits for places.

    Attributes:
        waiting: how many jobs do.
        joined: the home of each job that joined the one of its key, by the number of its start.
    """

    def __init__(self, assignment: Assignment) -> None:
        self.waiting = 0
        self._assignment = assignment
        self._homes: dict[tuple[str, str], Home] = {}
        self.joined: dict[int, Home] = {}

    def add(self, waiting: Waiting, kind: Kind) -> bool:
        """Let a claimed job wait for the place of its key, or for the least loaded; False when there are no places."""
        snapshot = self._assignment.places(kind).snapshot
        if not snapshot.size:
            return False
        self.waiting += 1
        if waiting[0].key:
            key = (kind, waiting[0].key)
            home = self._homes.get(key)
            if home is None:
                home = self._homes[key] = Home(key)
            home.waiting.append(waiting)
            self._admit(home)
        else:
            self._queue(place_of(snapshot, ""), waiting)
        return True

    def serve(self, now: float, may_start: Callable[[Waiting], bool]) -> list[Attempt]:
        """Book what runners have room for now; to be sent. What may not start has been ended instead."""
        assignment, starts = self._assignment, list[Attempt]()
        changed, assignment.changed = assignment.changed, set()
        for place in changed:
            handle = place.handle
            while (
                handle is not None
                and place.line
                and handle.open
                and assignment.fits(handle, place.line[0][0].task, now, alone=place.line[0][0].crashes > 0)
            ):
                waiting = self._next(place)
                if may_start(waiting):
                    start = Attempt(*waiting, handle, place)
                    assignment.assign(handle, start, now)
                    starts.append(start)
            assignment.places(place.kind).reindex(place)
        return starts

    def put_back(self, starts: list[Attempt]) -> None:
        places: set[RunnerSlot] = set()
        for start in reversed(starts):
            place = start.bound
            assert place is not None
            place.line.appendleft((start.claim, start.plan))
            place.queued += self._cost(start.claim.task)
            self.waiting += 1
            places.add(place)
        for place in places:
            if place.leaving:
                self.vacate(place)
            else:
                self._changed(place)

    def ended(self, number: int) -> None:
        home = self.joined.pop(number, None)
        if home is not None:
            home.inside -= 1
            self._admit(home)
            if not home.inside and not home.waiting:
                self._homes.pop(home.key, None)

    def vacate(self, place: RunnerSlot) -> None:
        """A place was removed: what waits there goes elsewhere; where its key has a running one, when that ends."""
        homes: dict[int, tuple[Home, list[Waiting]]] = {}
        for waiting in [self._next(place) for _ in range(len(place.line))]:
            self.waiting += 1
            home = self.joined.pop(waiting[0].number, None)
            if home is None:
                self._queue(place_of(self._assignment.places(place.kind).snapshot, ""), waiting)
            else:
                home.inside -= 1
                homes.setdefault(id(home), (home, []))[1].append(waiting)
        for home, line in homes.values():
            home.waiting.extendleft(reversed(line))
        for home in [home for home in self._homes.values() if home.place is place]:
            self._admit(home)

    def cancel(self, id: str) -> Waiting | None:
        for line in self._lines():
            for waiting in line:
                if waiting[0].id == id:
                    line.remove(waiting)
                    self.waiting -= 1
                    return waiting
        return None

    def take_all(self, concerns: Callable[[Claim], bool]) -> list[Waiting]:
        taken: list[Waiting] = []
        for line in self._lines():
            mine = [waiting for waiting in line if concerns(waiting[0])]
            taken += mine
            rest = [waiting for waiting in line if not concerns(waiting[0])] if len(mine) < len(line) else ()
            line.clear()
            line.extend(rest)
        for place in self._places():
            place.queued = sum(self._cost(claim.task) for claim, _ in place.line)
        self.waiting -= len(taken)
        return sorted(taken, key=lambda waiting: waiting[0].token)

    def _admit(self, home: Home) -> None:
        while home.waiting and not home.closed:
            waiting = home.waiting.popleft()
            if not home.inside:
                snapshot = self._assignment.places(home.key[0]).snapshot
                home.place = place_of(snapshot, home.key[1])
            assert home.place is not None
            home.inside += 1
            self.joined[waiting[0].number] = home
            self._queue(home.place, waiting)

    def _queue(self, place: RunnerSlot, waiting: Waiting) -> None:
        place.line.append(waiting)
        place.queued += self._cost(waiting[0].task)
        self._changed(place)

    def _next(self, place: RunnerSlot) -> Waiting:
        waiting = place.line.popleft()
        place.queued = max(0.0, place.queued - self._cost(waiting[0].task)) if place.line else 0.0
        self.waiting -= 1
        return waiting

    def _changed(self, place: RunnerSlot) -> None:
        self._assignment.changed.add(place)
        self._assignment.kinds[place.kind].reindex(place)

    def _cost(self, task: str) -> float:
        return self._assignment.costs.get(task, self._assignment.prefetch_seconds)

    def _places(self) -> list[RunnerSlot]:
        return [place for places in self._assignment.kinds.values() for place in places.snapshot.members]

    def _lines(self) -> list[deque[Waiting]]:
        return [place.line for place in self._places()] + [home.waiting for home in self._homes.values()]
