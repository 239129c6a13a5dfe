"""Claimed jobs that wait in a worker: for one place, or for limits on another shard. Sends nothing.

:class:`LocalQueues` has jobs with a key, and broadcasts. The lease of the dispatcher covers them, a shutdown hands them
back, and their number is bounded by not claiming (``MOST``). Jobs that have limits do not wait here: others would wait
for the places in limits that these hold. A key has a *home* while jobs of it are in the worker: all of them go to one
place, so that a resize lets no later one overtake. Where a place runs several at once (threads, coroutines), and where
it is being removed, the next of a key joins it only when the one before has ended.

:class:`AwayLimits` has jobs of other shards whose limits live at home. A start holds all gates of its job there before
a runner gets it, keeps them with the lease of the worker, and lets go when it has ended: then home learns what more it
has spent. Where a hold could not be kept, its job is stopped and goes back without a charge: so no limit is exceeded.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from headrace.model.ended import Ended, RateRefused, Released
from headrace.model.job import Claim
from headrace.model.options import Kind
from headrace.protocol.limit_verbs import GateAnswer, keep_hold, release_hold, take_limits
from headrace.protocol.script import Call
from headrace.settings import microseconds
from headrace.worker.dispatcher.assignment import Assignment, Attempt, RunnerSlot, Waiting, place_of
from headrace.worker.dispatcher.dispatcher_events import End, Step
from headrace.worker.dispatcher.worker_state import NEVER, Desk, Worker
from headrace.worker.health_stamps import fence_at
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
            while handle is not None and place.line and handle.open:
                first = place.line[0][0]
                if not assignment.fits(handle, first.task, now, alone=first.crashes > 0 or first.once):
                    break
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
            taken += [waiting for waiting in line if concerns(waiting[0])]
            rest = [waiting for waiting in line if not concerns(waiting[0])]
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
                home.place = place_of(self._assignment.places(home.key[0]).snapshot, home.key[1])
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


# Seconds until a refused start without a time comes again, doubled each time up to the second. Each pause is varied by
# half: starts that were claimed together must not come together again.
FIRST, LONGEST = 0.2, 5.0
# Calls of one trip.
MOST_CALLS = 300
# Seconds without an answer of home until no runner is kept free any more for starts that wait for it.
PATIENCE = 1.0
# Share of the lease after which holds are kept for one more, as the lease of the worker is.
KEEP = 0.4


class _Hold(msgspec.Struct):
    """``unkept``: of how many gates it is not known yet whether they are held for one more lease."""

    claim: Claim
    holder: str
    gates: list[str]
    since: int
    until: float
    keep_at: float
    spent: Counter[str]
    unkept: int = 0
    lost: bool = False


class AwayLimits:
    """The holds of one worker.

    Attributes:
        ready: starts that hold their gates, to be handed out.
        refused: starts that come again later, each with its pause in microseconds.
        asking: starts that wait for their gates, by number.
    """

    def __init__(self, worker: Worker, desk: Desk) -> None:
        self.ready: list[Claim] = []
        self.refused: list[tuple[Claim, int]] = []
        self._worker, self._home = worker, desk
        self._lease = worker.settings.lease
        # Tasks and queues that have limits, as the code of this worker declares them.
        self._limited = frozenset(str(name) for name in worker.limits.rows[::2])
        self.asking: dict[int, Claim] = {}
        self._unasked: list[Claim] = []
        # When home last answered one of them, or the first was asked.
        self._heard = 0.0
        self._holds: dict[int, _Hold] = {}
        self._releases: list[Call[bool]] = []

    def __bool__(self) -> bool:
        return bool(self._holds or self._releases)

    def limits(self, claim: Claim) -> bool:
        return bool(self._limited) and not self._limited.isdisjoint((f"task:{claim.task}", f"queue:{claim.queue}"))

    def admits(self, claim: Claim) -> bool:
        """Whether a start with limits holds their gates. One that does not asks for them, or comes again later."""
        hold = self._holds.get(claim.number)
        if hold is not None and not hold.lost:
            return True
        if hold is not None or self.silent:
            self.refused.append((claim, self._pause(claim)))
        elif claim.number not in self.asking:
            self._heard = self._heard if self.asking else self._worker.now
            self.asking[claim.number] = claim
            self._unasked.append(claim)
        return False

    @property
    def silent(self) -> bool:
        """Whether starts ask home, and it has answered none for :data:`PATIENCE` seconds."""
        return bool(self.asking) and self._worker.now >= self._heard + PATIENCE

    def steps(self, now: float) -> list[Step]:
        steps: list[Step] = []
        while self._unasked and len(steps) < MOST_CALLS:
            claim = self._unasked.pop()
            if claim.number in self.asking:
                steps.append(self._take(claim, now))
        while self._releases and len(steps) < MOST_CALLS:
            steps.append((self._releases.pop(), lambda _: None))
        for hold in self._holds.values():
            if now >= hold.keep_at and not hold.unkept and len(steps) < MOST_CALLS:
                hold.unkept = len(hold.gates)
                steps += [self._keep(hold, gate, now) for gate in hold.gates]
        return steps

    def check(self, now: float) -> bool:
        """While home does not answer, starts come again later, and holds may be lost; whether some are."""
        if self._home.fenced or not self._home.owner:
            for claim in self.take_all(lambda _: True):
                self.refused.append((claim, self._pause(claim)))
        self._worker.timers.set("asked", self._heard + PATIENCE if self.asking else NEVER)
        if not self._holds:
            return False
        for hold in self._holds.values():
            hold.lost = hold.lost or now >= fence_at(hold.until, self._lease)
        kept = [hold for hold in self._holds.values() if not hold.lost]
        # A past time sets no timer: while home takes no request, the time to stop the job counts alone.
        keeps = [one.keep_at for one in kept if not one.unkept and one.keep_at > now]
        fences = [fence_at(one.until, self._lease) for one in kept]
        self._worker.timers.set("holds", min([*keeps, *fences], default=NEVER))
        return len(kept) < len(self._holds)

    def keep_all(self) -> None:
        """Home was away, and may have forgotten holds: others pass those gates until these starts are stopped."""
        for hold in self._holds.values():
            hold.keep_at = 0.0

    def lost(self, claim: Claim) -> bool:
        hold = self._holds.get(claim.number)
        return hold is not None and hold.lost

    def waiting(self, concerns: Callable[[Claim], bool]) -> int:
        return sum(map(concerns, self.asking.values()))

    def take_all(self, concerns: Callable[[Claim], bool]) -> list[Claim]:
        taken = [claim for claim in self.asking.values() if concerns(claim)]
        for claim in taken:
            del self.asking[claim.number]
        self._unasked = [claim for claim in self._unasked if claim.number in self.asking]
        return taken

    def ended(self, ends: Iterable[End]) -> None:
        # Every job of another shard than home passes here.
        for end in ends if self._holds else ():
            if (hold := self._holds.pop(end.claim.number, None)) is not None:
                self._release(hold, end.ended)

    def add_spent(self, number: int, spent: Iterable[tuple[str, int]]) -> None:
        if (hold := self._holds.get(number)) is not None:
            for limit, units in spent:
                hold.spent[limit] += units

    def _release(self, hold: _Hold, ended: Ended) -> None:
        back = hold.claim.cost if ended.kind == "released" else 0
        for gate in hold.gates:
            limit = gate.partition(":")[0]
            refused = ended.delay if isinstance(ended, RateRefused) and ended.limit == limit else -1
            spent, since = hold.spent[limit], hold.since
            self._releases.append(release_hold(self._home.keys, limit, gate, hold.holder, spent, since, refused, back))

    def _take(self, claim: Claim, now: float) -> Step:
        lease = microseconds(self._lease)
        holder = f"{self._worker.place}/{claim.id}/{claim.number}.{lease}"
        return take_limits(self._home.keys, claim, holder, lease), lambda reply: self._taken(claim, holder, now, reply)

    def _taken(self, claim: Claim, holder: str, sent: float, reply: GateAnswer) -> None:
        waits = self.asking.pop(claim.number, None) is not None
        self._heard = self._worker.now
        # A start that passed no gate has nothing to keep: its limits were removed.
        until, keep_at = (sent + self._lease, sent + self._lease * KEEP) if reply.gates else (NEVER, NEVER)
        hold = _Hold(claim, holder, reply.gates, reply.now, until, keep_at, Counter())
        if reply.held and not waits:
            self._release(hold, Released())
        elif reply.held:
            self._holds[claim.number] = hold
            self.ready.append(claim)
        elif waits:
            self.refused.append((claim, max(1, reply.opens - reply.now) if reply.opens else self._pause(claim)))

    def _keep(self, hold: _Hold, gate: str, now: float) -> tuple[Any, Callable[[bool], None]]:
        def kept(there: bool) -> None:
            hold.unkept, hold.lost = hold.unkept - 1, hold.lost or not there
            # One gate that is kept says nothing of another whose call was refused.
            if not hold.unkept:
                hold.until, hold.keep_at = now + self._lease, now + self._lease * KEEP

        return keep_hold(self._home.keys, gate, hold.holder, microseconds(self._lease)), kept

    def _pause(self, claim: Claim) -> int:
        longest = min(LONGEST, FIRST * 2.0 ** min(claim.snoozes, 10))
        return round(longest * (0.5 + self._worker.random.random()) * 1e6)
