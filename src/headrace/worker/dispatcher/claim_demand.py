"""What a dispatcher wants from the queues: jobs now, to be woken when some come, or nothing. Decides; does no I/O.

What is wanted is a function of values at this moment, so that no event can be forgotten. A claim that came back short
took all that it might take: what it had to leave are jobs of kinds without room, or it had brought enough bytes, and
then the queue holds a token, which ends the next sleep at once. A claim that came back full tells nothing of the rest.

A kind is *crowded* while jobs of it are known to wait for a runner. A claim that has room for others, too, passes over
them: it looks at a bounded number of entries of each queue, and goes on behind them the next time. Claims name the
tasks of crowded kinds only, so that one costs no more where nothing waits, or where all runners are of one kind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from headrace.model.ids import OWN_QUEUE
from headrace.model.options import OWN, OWN_AT_ONCE, Kind
from headrace.protocol.consume import ClaimSummary, Cursor, Looked
from headrace.worker.dispatcher.assignment import Assignment
from headrace.worker.dispatcher.worker_state import Desk, Worker

# Seconds between two claims; each goes on where the other stopped looking.
LOOK_EVERY = 0.005
# Seconds after which it looks from the front again, if it was woken while it has cursors: what came may have an earlier
# place, by its priority or since it was handed back.
ANEW_AFTER = 5.0
_NONE = frozenset[Kind]()
_OWN = frozenset[Kind]({OWN})


class ClaimRequest(msgspec.Struct, frozen=True):
    """A claim, to be made now or when a job has come.

    Attributes:
        now: False: sleep on the queues first.
        kinds: of runners that it is made for: those that have room, and whose jobs may wait.
        passing: crowded kinds, and how many jobs of each it may bring at most.
        cursors: behind which entry of a queue it goes on looking.
    """

    now: bool
    limit: int
    kinds: frozenset[Kind]
    passing: Mapping[Kind, int] = msgspec.field(default_factory=dict[Kind, int])
    cursors: Mapping[str, Cursor] = msgspec.field(default_factory=dict[str, Cursor])


class QueueKnowledge(msgspec.Struct, frozen=True):
    """What the answers to earlier claims tell of the queues.

    Attributes:
        waiting: kinds whose ready jobs may wait in them; ``crowded``: those of them whose jobs do, for certain.
        cursors: the last entry of each queue that was looked at. All before it were of the kinds ``over``.
        beyond: whether entries behind a cursor were not looked at yet.
    """

    waiting: frozenset[Kind]
    crowded: frozenset[Kind] = frozenset()
    cursors: Mapping[str, Cursor] = msgspec.field(default_factory=dict[str, Cursor])
    over: frozenset[Kind] = frozenset()
    beyond: bool = False

    def answered(self, wanted: ClaimRequest, brought: int, looked: Looked | None) -> QueueKnowledge:
        """What is known after a claim; without ``looked`` it passed over nothing, or that reply was lost."""
        full = brought >= wanted.limit
        if looked is None:
            return replace(self, waiting=self.waiting | wanted.kinds) if full or wanted.passing else _EMPTY
        # Behind a cursor nothing is seen of those before it: they are still there.
        goes_on = bool(wanted.cursors)
        over = looked.passed | (self.over if goes_on else _NONE)
        # While entries are left to look at, jobs that were seen before may be behind them.
        crowded = self.crowded | over if full or looked.beyond else over
        waiting = self.waiting | wanted.kinds | over if full else crowded
        if goes_on and not self.cursors:
            # It is to look from the front since this claim was sent.
            return replace(self, waiting=waiting, crowded=crowded, over=over)
        cursors = {**(self.cursors if goes_on else {}), **looked.cursors}
        return QueueKnowledge(waiting, crowded, cursors, over, looked.beyond)

    def may_wait(self, kinds: Iterable[Kind]) -> QueueKnowledge:
        return replace(self, waiting=self.waiting.union(kinds))

    def handed_back(self, kind: Kind) -> QueueKnowledge:
        more = {kind}
        # It is before a cursor again.
        return replace(self, waiting=self.waiting | more, crowded=self.crowded | more, over=self.over | more)

    def from_the_front(self) -> QueueKnowledge:
        return replace(self, cursors={}, beyond=bool(self.cursors))


# What is known when a claim took all.
_EMPTY = QueueKnowledge(_NONE)


def want(
    known: QueueKnowledge, rooms: Mapping[Kind, int], most: int, *, ask: bool = False, look: bool = False
) -> ClaimRequest | None:
    """What is wanted now, at most ``most``; None: nothing can be taken. ``ask``: there may be jobs that no answer
    tells of. ``look``: it is time to go on looking behind what was passed over.
    """
    free: dict[Kind, int] = {kind: room for kind, room in rooms.items() if room > 0}
    takes = frozenset(free) if ask else known.waiting.intersection(free)
    if not takes and known.beyond:
        if not look:
            return None
        takes = frozenset(free)
    now = bool(takes)
    takes = takes or frozenset(free)
    limit = min(most, sum(free[kind] for kind in takes))
    if limit <= 0:
        return None
    passing: dict[Kind, int] = {kind: free.get(kind, 0) for kind in sorted(known.crowded) if free.get(kind, 0) < limit}
    full = {kind for kind, room in passing.items() if room == 0}
    return ClaimRequest(now, limit, takes, passing, known.cursors if passing and known.over <= full else {})


def awaited(queues: Iterable[str], paused: Collection[str], kinds: Iterable[Kind], known: QueueKnowledge) -> list[str]:
    """What a sleep listens to: queues that are not paused, and in each what others pass over that may run here. Of a
    crowded kind there is no runner free: when one is, it is claimed for at once.
    """
    able = [kind for kind in kinds if kind not in known.crowded]
    lines: list[str] = []
    for queue in queues:
        if queue not in paused:
            lines.append(queue)
            lines += [f"{queue}|{kind}" for kind in able]
    return lines


class ClaimDemand:
    """What is wanted now.

    Attributes:
        known: what the answers to claims tell of the queues.
        own_may_wait: whether ready own jobs may wait; own_room: how many may be claimed. They take no room of others.
        freed: kinds of runners that got room since this was last read.
        asking: number of the claim that asks for what was broadcast; 0: none does.
        runner_rooms: see :meth:`Assignment.rooms`.
    """

    def __init__(self, worker: Worker, desk: Desk, assignment: Assignment) -> None:
        # Of several shards one asks for all.
        self.runner_rooms: Callable[[float], dict[Kind, int]] = assignment.rooms
        # Of several shards each reads them.
        self.freed = set[Kind]() if desk.many else assignment.freed
        self._kinds = worker.kinds
        self._timers = desk.timers
        self.known = QueueKnowledge(frozenset(self._kinds))
        self.own_may_wait, self.own_room = True, OWN_AT_ONCE
        # Kinds for which no runner had room when a job came, whatever had been reckoned.
        self._refused = set[Kind]()
        # The tasks of each kind, for claims that pass over some.
        self._tasks: dict[Kind, list[str]] = {kind: [] for kind in self._kinds}
        for task in worker.tasks.values():
            if task.kind != OWN:
                self._tasks[task.kind].append(task.name)
        self.asking = 0
        # Broadcasts announced so far; the last one whose jobs are all claimed; the last one that a claim asks for.
        self._calls = self._answered = self._asked = 0
        self._timers.set("look", 0.0)

    def begin(self) -> None:
        self.known = QueueKnowledge(frozenset(self._kinds))
        self.own_may_wait, self.asking = True, 0

    def begin_turn(self, now: float) -> None:
        if self._timers.due("anew", now):
            self.known = self.known.from_the_front()
            self._timers.clear("anew")

    def may_wait(self) -> None:
        self.known = self.known.may_wait(self._kinds)

    def handed_back(self, kind: Kind) -> None:
        """A job came for which no runner had room. While none may start anything no end of a job would lift this."""
        if kind == OWN:
            self.own_may_wait = True
            return
        self._refused.add(kind)
        self.known = self.known.handed_back(kind)

    def answered(self, wanted: ClaimRequest, summary: ClaimSummary, now: float, *, woken: bool) -> None:
        if OWN in wanted.kinds:
            return
        self.known = self.known.answered(wanted, summary.brought, summary.looked)
        if self.known.beyond:
            self._timers.set("look", now + LOOK_EVERY)
        if wanted.cursors and not wanted.now and woken:
            self._timers.set("anew", min(self._timers.at("anew"), now + ANEW_AFTER))

    def wanted(self, now: float, most: int, coming: int, parked: Sequence[Kind], *, ask: bool) -> ClaimRequest | None:
        """See :func:`want`; ``coming``: jobs that are here and that no runner has yet; ``parked``: kinds whose parked
        jobs may be moved in the same trip.
        """
        known = self.known.may_wait(parked) if parked else self.known
        return want(known, self.rooms(now, coming), most, ask=ask, look=now >= self._timers.at("look"))

    def rooms(self, now: float, coming: int) -> dict[Kind, int]:
        freed = self.freed
        if freed:
            self._refused -= freed
            freed.clear()
        rooms = self.runner_rooms(now)
        # Their runners start with the first own job.
        self.own_room = rooms.pop(OWN, OWN_AT_ONCE)
        return {kind: max(0, room - coming) for kind, room in rooms.items() if kind not in self._refused}

    def own(self, now: float) -> ClaimRequest | None:
        self.rooms(now, 0)
        return ClaimRequest(True, self.own_room, _OWN) if self.own_room else None

    def own_names(self) -> list[str]:
        # Without room nothing is heard of them meanwhile.
        self.own_may_wait = not self.own_room
        return [OWN_QUEUE] if self.own_room else []

    def passing(self, wanted: ClaimRequest) -> list[tuple[Kind, int, Sequence[str]]]:
        return [(kind, most, self._tasks[kind]) for kind, most in wanted.passing.items()]

    def awaited(self, queues: Iterable[str], paused: frozenset[str]) -> list[str]:
        return [*([OWN_QUEUE] if self.own_room else []), *awaited(queues, paused, self._kinds, self.known)]

    def call(self) -> None:
        self._calls += 1

    @property
    def unasked_broadcast(self) -> bool:
        return self._calls != self._answered and not self.asking

    def ask(self, number: int) -> None:
        self.asking, self._asked = number, self._calls

    def on_claim(self, *, some: bool) -> None:
        """The claim that asked for what was broadcast was read. While it brings ``some`` there may be more."""
        if not some:
            self._answered = self._asked
        self.asking = 0
