"""Regular duties of a dispatcher for the store. Their calls travel with the next request; nothing is sent from here.

:class:`Maintenance` has the table of all duties. The reply of :class:`Renewal` says when all others are due. Duties of
more than a screen have files of their own.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from operator import attrgetter
from typing import Any, Protocol

from headrace.model.environment import Finding, Sight, judged
from headrace.model.ids import OWN_QUEUE
from headrace.model.limit_rules import DeclaredLimits
from headrace.protocol import consume, graph, operations
from headrace.protocol.keys import Keys
from headrace.protocol.limit_verbs import declare_limits
from headrace.protocol.script import Call
from headrace.settings import microseconds
from headrace.worker.dispatcher.declared_duties import TICKING, OwnCalls, TickDuty
from headrace.worker.dispatcher.dispatcher_events import Step
from headrace.worker.dispatcher.worker_state import NEVER, Desk, Worker

# The most rows that one call handles.
BATCH = 500
# A lease that is over is looked at so much later (seconds): at the very moment its owner may still be renewing.
LATE = 0.05


class Duty(Protocol):
    """One duty. Times are this process's monotonic seconds; what the server says in its own time is converted.

    ``call`` makes the call that is due, ``on_reply`` learns from its reply, and ``on_renewal`` from the reply to a
    renewal when the duty is due next. ``sent``: when what is replied to was sent.

    Attributes:
        at: when it is due; infinity while that is not known. ``call`` moves it on.
        script: the name of its call's script. While the store refuses it, the call is not made anew.
        makes_ready: whether it may make jobs ready: a worker that leaves when all is done does it first.
    """

    at: float
    script: str
    makes_ready: bool

    def call(self, now: float, /) -> Call[Any]: ...

    def on_reply(self, reply: Any, sent: float, /) -> None: ...

    def on_renewal(self, renewed: consume.Renewed, sent: float, /) -> None: ...


def moment(now: float, server_now: int, at: int) -> float:
    """When it is here that time by the server's clock; infinity for 0, which says that there is none."""
    return now + max(0, at - server_now) / 1e6 if at else NEVER


class Reclaim:
    """Take what dead incarnations hold back into their queues, one after the other, in pieces."""

    script, makes_ready = "reclaim", True

    def __init__(self, desk: Desk, failure_ttl: int, renew: Callable[[], None]) -> None:
        self.at = NEVER
        self._desk, self._failure_ttl, self._renew = desk, failure_ttl, renew
        # Incarnations, and whether it is certain that they are dead.
        self._victims: deque[tuple[str, bool]] = deque()
        # The incarnation whose lease ends first.
        self._suspect = ""

    def add(self, victim: str, *, is_dead: bool) -> None:
        self._victims.append((victim, is_dead))
        self.at = 0.0

    def call(self, _: float) -> Call[tuple[str, int]]:
        if not self._victims:
            self._victims.append((self._suspect, False))
            self._suspect = ""
        # It stays due until it is answered.
        self.at = 0.0
        victim, is_dead = self._victims[0]
        return consume.reclaim(self._desk.keys, victim, is_dead, BATCH, self._failure_ttl)

    def on_reply(self, reply: tuple[str, int], _: float) -> None:
        word, _ = reply
        if word == "some":
            self._victims.rotate(-1)
            return
        self._victims.popleft()
        if not self._victims:
            self.at = NEVER
        if word == "done":
            # There may be another lapsed owner behind this one: the next renewal names it.
            self._renew()

    def on_renewal(self, renewed: consume.Renewed, sent: float) -> None:
        self._suspect = "" if renewed.lapsing == self._desk.owner else renewed.lapsing
        if not self._victims:
            # An end of 0: another worker began to reclaim it, and died.
            self.at = moment(sent, renewed.now, renewed.lapse or 1) + LATE if self._suspect else NEVER


# Share of the lease after which it is renewed: there is time for a second try, and an idle worker says little.
RENEW = 0.4


class Renewal:
    """Keep the lease, and hear from the store what else there is to do.

    Attributes:
        lease_until: until when this incarnation is sure of what it holds, reckoned from before the renewal was sent.
        promise: until when the store has promised the lease, microseconds of its clock; 0: it has not yet.
        gone: the lease was lost.
        paused: queues that it serves and that were paused at the last renewal; ``ready``: others that had ready jobs.
        looked: when that renewal was sent (monotonic seconds).
        cancels: ids that run here and were asked to stop, to be taken by the core.
    """

    script, makes_ready = "renew", True

    def __init__(
        self,
        worker: Worker,
        desk: Desk,
        metadata: Callable[[], Sequence[str | int]],
        expected: Callable[[], int],
        tell: Callable[[consume.Renewed, float], None],
    ) -> None:
        """``metadata``: names and values of what has changed of the worker; ``expected``: jobs that the store should
        count as held; ``tell``: passes the reply on.
        """
        self.at = self.lease_until = self.looked = 0.0
        self.promise = self.ready = self._doubts = self._held = 0
        self.gone = False
        self.cancels: deque[str] = deque()
        self.paused = frozenset[str]()
        self._worker, self._desk, self._lease = worker, desk, worker.settings.lease
        self._metadata, self._expected, self._tell = metadata, expected, tell
        # Whether it is to hear when the next tick is due. What brings an earlier one has all renew at once, so once a
        # tick is known, no renewal asks that comes with time: schedules cost an idle worker no command.
        self._asks_ticks = True

    def begin(self, sent: float) -> None:
        self.gone, self._doubts = False, 0
        self.lease_until = sent + self._lease
        # At once, since the first renewal tells what else is due in this store.
        self.at, self._asks_ticks = sent, True

    def call(self, now: float) -> Call[consume.Renewed]:
        self.at = now + self._lease * RENEW
        desk, lease = self._desk, microseconds(self._lease)
        queues, metadata = (*self._worker.options.queues.names, OWN_QUEUE), self._metadata()
        call = consume.renew(desk.keys, desk.owner, lease, metadata, queues, self._asks_ticks)
        self._held = self._expected()
        return call

    def on_reply(self, reply: consume.Renewed, sent: float) -> None:
        if reply.alive:
            self.paused = frozenset(reply.paused)
            self.ready = reply.ready
            self.looked = sent
            self._tell(reply, sent)
        else:
            self.gone = True

    def take_doubts(self, most: int) -> bool:
        """Whether this many renewals in a row have counted other jobs; then they are counted anew."""
        doubtful = self._doubts >= most
        self._doubts = 0 if doubtful else self._doubts
        return doubtful

    def on_renewal(self, renewed: consume.Renewed, sent: float) -> None:
        self._doubts = self._doubts + 1 if renewed.held != self._held else 0
        self.lease_until = sent + self._lease
        self.promise = renewed.now + microseconds(self._lease)
        self.cancels.extend(renewed.cancels)
        if renewed.tick is not None and self.at:
            self._asks_ticks = not renewed.tick

    def renew_soon(self) -> None:
        self.at, self._asks_ticks = 0.0, True


class Unparking:
    """Parked jobs of tasks that are known here. They line up when there is room for some, with a claim."""

    def __init__(self, keys: Keys, tasks: Container[str], queues: Sequence[str]) -> None:
        self.parked: set[str] = set()
        self._keys, self._tasks, self._queues = keys, tasks, queues
        self._under_way = 0

    def begin(self) -> None:
        self._under_way = 0

    def __bool__(self) -> bool:
        return bool(self.parked or self._under_way)

    def step(self, task: str, room: int) -> Step:
        limit = min(room, BATCH)
        # What is heard from now on may be newer than the answer.
        self.parked.discard(task)
        self._under_way += 1

        def moved(count: int) -> None:
            self._under_way -= 1
            if count == limit:
                self.parked.add(task)

        return consume.unpark(self._keys, task, limit, self._queues), moved

    def on_renewal(self, renewed: consume.Renewed, _: float) -> None:
        self.parked.update(task for task in renewed.parking if task in self._tasks)


# Workflows that leave at once, and seconds until the next ones may: removing many must not be felt by jobs.
LAPSE = 10
LAPSE_EVERY = 0.05
# Nodes or edges of one piece of background work.
PIECE = 250
# Seconds after which the dispatcher that opened gates asks when the next ones open; and after which limits are declared
# once more to a server that does not know the incarnation.
ASK_AGAIN = 0.05
# Seconds after which limits are declared again that newer code has changed: its workers may have left.
AGAIN = 10.0

# Microseconds between two counts of the ready jobs.
MINUTE = 60_000_000
# Seconds between two looks at the server, at most.
LOOK_EVERY = 30.0
LOOKED_AT = ("eviction-policy", "evicted", "last-save", "last-append")

_at: Callable[[Duty | TickDuty | OwnCalls], float] = attrgetter("at")


class Promotion:
    script, makes_ready = "promote", True

    def __init__(self, keys: Keys) -> None:
        self.at = NEVER
        # When a job becomes due that we scheduled since the last call.
        self._expected_at = NEVER
        # The server's time at the latest of the answers that told what is due.
        self._told_at = 0
        self._keys = keys

    def call(self, _: float) -> Call[tuple[int, int, int, int]]:
        self.at = self._expected_at = NEVER
        return consume.promote(self._keys, BATCH)

    def on_reply(self, reply: tuple[int, int, int, int], sent: float) -> None:
        _, server_now, due, opened = reply
        self.learn(sent, server_now, due)
        if opened:
            # Jobs start behind them and close them again. Only the worker that claims these is told until when, and it
            # may be killed.
            self.at = min(self.at, sent + ASK_AGAIN)

    def on_renewal(self, renewed: consume.Renewed, sent: float) -> None:
        self.learn(sent, renewed.now, renewed.due)

    def learn(self, now: float, server_now: int, due: int) -> None:
        at = moment(now, server_now, due)
        # Of two connections the later answer may be read first. A claim that a promotion has woken is told of a gate
        # that the promotion's own answer does not know of yet.
        self.at = min(at, self.at) if server_now < self._told_at else at
        self._told_at = max(self._told_at, server_now)
        # A claim may have been made before the settle that scheduled that job, and be answered after it.
        self.at = min(self.at, self._expected_at)

    def expect(self, due: float) -> None:
        self._expected_at = min(self._expected_at, due)
        self.at = min(self.at, due)


class Resumption:
    script, makes_ready = "resume_due", True

    def __init__(self, keys: Keys) -> None:
        self.at = NEVER
        self._keys = keys

    def call(self, _: float) -> Call[tuple[int, int, int]]:
        # It stays due until it is answered.
        return operations.resume_due(self._keys, BATCH)

    def on_reply(self, reply: tuple[int, int, int], sent: float) -> None:
        _, server_now, end = reply
        self.at = moment(sent, server_now, end)

    def on_renewal(self, renewed: consume.Renewed, sent: float) -> None:
        self.at = moment(sent, renewed.now, renewed.resumes)


class Sampling:
    """Count the ready jobs of each queue once a minute, for statistics; the first dispatcher that asks is told."""

    script, makes_ready = "sample", False

    def __init__(self, keys: Keys, absorb: Callable[[Mapping[str, int], float, bool], None]) -> None:
        self.at = NEVER
        self._keys, self._absorb = keys, absorb

    def call(self, now: float) -> Call[tuple[int, dict[str, int] | None]]:
        self.at = now + MINUTE / 1e6
        return operations.sample(self._keys)

    def on_reply(self, reply: tuple[int, dict[str, int] | None], sent: float) -> None:
        server_now, sizes = reply
        self.at = moment(sent, server_now, server_now - server_now % MINUTE + MINUTE)
        if sizes is not None:
            self._absorb(sizes, server_now / 1e6, self._keys.shard == 0)

    def on_renewal(self, renewed: consume.Renewed, sent: float) -> None:
        self.at = min(self.at, moment(sent, renewed.now, renewed.now - renewed.now % MINUTE + MINUTE))


class ServerLook:
    """Ask the server what it says of itself: rows of the doctor's table that lose jobs are logged, once each."""

    script, makes_ready = "server_info", False

    def __init__(self, worker: Worker, desk: Desk) -> None:
        self.at = NEVER
        self._worker, self._desk = worker, desk
        self._every = min(LOOK_EVERY, 2 * worker.settings.lease)
        self._known = set[Finding]()

    def call(self, now: float) -> Call[Sight | None]:
        self.at = now + self._every
        return operations.server_info(self._desk.keys)

    def on_reply(self, reply: Sight | None, _: float) -> None:
        if reply is None:
            return
        sight = Sight(reply.info, allow_eviction=self._worker.settings.allow_eviction)
        found = [one for one in judged(sight) if one.id in LOOKED_AT]
        for one in found:
            if one not in self._known:
                facts = (one.meaning, one.evidence[0], self._desk.place, one.command)
                self._worker.actions.log(logging.ERROR, "%s (%s%s): %s", *facts, code="store.unsound")
        self._known = set(found)
        self._desk.evicting = any(one.id == "eviction-policy" for one in found)

    def on_renewal(self, _: consume.Renewed, sent: float) -> None:
        # A connection looks when it is made.
        self.at = sent + self._every if self.at == NEVER else self.at


class Portions:
    """Do work in the store in portions: each reply says how much was done, and when more is due (0: never)."""

    def __init__(
        self,
        script: str,
        make: Callable[[], Call[tuple[int, int, int]]],
        due: Callable[[consume.Renewed], int],
        *,
        full: int = 1,
        pause: float = 0.0,
        makes_ready: bool = False,
    ) -> None:
        """``due``: what a renewal says: when it is due, by the server's clock. After a call that has done ``full`` of
        it there is more to do, after ``pause`` seconds.
        """
        self.at = NEVER
        self.script, self.makes_ready = script, makes_ready
        self._make, self._due, self._full, self._pause = make, due, full, pause

    def call(self, _: float) -> Call[tuple[int, int, int]]:
        self.at = NEVER
        return self._make()

    def on_reply(self, reply: tuple[int, int, int], sent: float) -> None:
        count, server_now, due = reply
        self.at = sent + self._pause if count >= self._full else min(self.at, moment(sent, server_now, due))

    def on_renewal(self, renewed: consume.Renewed, sent: float) -> None:
        # Whatever is known already, something sooner may have come since.
        self.at = min(self.at, moment(sent, renewed.now, self._due(renewed)))


class LimitDeclaration:
    """Declare the limits of the code: with the registration, and after other code changed some, until they count."""

    script, makes_ready = "limit_declare", False

    def __init__(self, keys: Keys, tasks: Collection[str], limits: DeclaredLimits) -> None:
        self.at = NEVER
        self._keys, self._tasks, self._limits = keys, tasks, limits
        self._owner, self._pause = "", 0.0

    def first(self, owner: str, now: float) -> Step:
        self._owner, self._pause = owner, 0.0
        return _step(self, now)

    def call(self, _: float) -> Call[int]:
        self.at = NEVER
        return declare_limits(self._keys, self._owner, self._tasks, self._limits)

    def on_reply(self, reply: int, sent: float) -> None:
        if reply > 0:
            self.at = sent + AGAIN
        elif reply < 0:
            # The registration came after it, since the server had forgotten that script; else the incarnation is gone.
            self.at, self._pause = sent + self._pause, ASK_AGAIN

    def on_renewal(self, renewed: consume.Renewed, sent: float) -> None:
        if "limits" in renewed.replaced:
            self.at = min(self.at, sent)


class Maintenance:
    """The table of duties, in the order in which their calls travel.

    Attributes:
        doubt_until: until when workers that were silent may be alive, and keep their jobs (monotonic seconds).
    """

    def __init__(
        self, worker: Worker, desk: Desk, metadata: Callable[[], Sequence[str | int]], expected: Callable[[], int]
    ) -> None:
        self._requests = desk.requests
        keys, settings, tasks = desk.keys, worker.settings, worker.tasks
        queues = (*worker.options.queues.names, OWN_QUEUE)
        self.renewal = Renewal(worker, desk, metadata, expected, self._on_renewal)
        self.promotion = Promotion(keys)
        ttl = microseconds(settings.failure_ttl)
        self.reclaim = Reclaim(desk, ttl, self.renewal.renew_soon)
        self._most = settings.max_finished
        self._most_bytes = settings.max_finished_bytes
        # Finished jobs whose retention is over, and those beyond the caps; then workflows whose retention is over.
        self.sweep = Portions(
            "sweep", lambda: consume.sweep(keys, BATCH, self._most, self._most_bytes), attrgetter("over"), full=BATCH
        )
        lapse = Portions("lapse", lambda: graph.lapse(keys, LAPSE), attrgetter("ends"), pause=LAPSE_EVERY)
        # Long verbs on workflows, and jobs that follow others.
        self.background = Portions("tend", lambda: graph.tend(keys, ttl, PIECE), attrgetter("chore"), makes_ready=True)
        self.unparking = Unparking(keys, tasks, queues)
        # It has several calls, so it makes its own steps.
        self.ticks = TickDuty(keys, worker.schedules if desk.home else (), worker.actions.log)
        self.limits = LimitDeclaration(keys, tasks, worker.limits)
        duties: list[Duty] = [
            self.limits, self.renewal, self.promotion, Resumption(keys), self.reclaim, self.sweep, lapse,
            self.background, ServerLook(worker, desk),
        ]  # fmt: skip
        if worker.sample:
            duties.append(Sampling(keys, worker.sample))
        # Limits live at home.
        leaves = worker.leaves if desk.home else {*worker.leaves, LimitDeclaration.script}
        self._duties = tuple(duty for duty in duties if duty.script not in leaves)
        self._ticking = not worker.leaves.issuperset(TICKING)
        self.own_calls = OwnCalls(worker, desk)
        ticks = [self.ticks] if self._ticking else []
        self._all: tuple[Duty | TickDuty | OwnCalls, ...] = (*ticks, self.own_calls, *self._duties)
        self._soon = worker.soon
        self.doubt_until = 0.0

    def begin(self, owner: str, sent: float, spared: float = 0.0) -> None:
        """A new incarnation was registered by a request sent at ``sent``; for ``spared`` seconds others may live."""
        self.doubt_until = sent + spared + LATE if spared else 0.0
        self.unparking.begin()
        self.ticks.begin(owner, sent)
        self.renewal.begin(sent)

    def declare_anew(self, now: float) -> None:
        """The server may have forgotten what the code declares, and remember the worker."""
        self.ticks.declare_anew(now)
        self.limits.at = now

    @property
    def next(self) -> float:
        return min(map(_at, self._all))

    def may_make_ready(self, now: float) -> bool:
        if self.unparking or now < self.doubt_until:
            return True
        return min(duty.at for duty in self._all if duty.makes_ready) <= now + self._soon

    def steps(self, now: float) -> list[Step]:
        """The calls that are due; those that the store refused are sent again by ``requests``."""
        waits = self._requests.waits
        steps = self.ticks.steps(now) if self._ticking and not waits(*TICKING) else []
        if now >= self.own_calls.at:
            steps += self.own_calls.steps(now)
        return steps + [_step(duty, now) for duty in self._duties if now >= duty.at and not waits(duty.script)]

    def settled(self, kept: int, size: int, chores: int, now: float) -> None:
        """So much is kept, over the caps it is swept at once; and this many pieces of background work are left."""
        if kept > self._most or size > self._most_bytes:
            self.sweep.at = now
        if chores:
            self.background.at = now

    def _on_renewal(self, renewed: consume.Renewed, sent: float) -> None:
        for duty in self._duties:
            duty.on_renewal(renewed, sent)
        self.settled(renewed.kept, renewed.bytes, 0, sent)
        self.unparking.on_renewal(renewed, sent)
        self.ticks.learn(sent, renewed.now, renewed.tick)
        if "schedules" in renewed.replaced:
            self.ticks.declare_anew(sent)


def _step(duty: Duty, now: float) -> Step:
    return duty.call(now), lambda reply: duty.on_reply(reply, now)
