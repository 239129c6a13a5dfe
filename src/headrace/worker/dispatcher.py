"""The dispatcher: the only one in a worker that talks to the store for claiming. Never runs user code.

Its duties, each with its own module:

1. claim batches and hand them out (handout.py, seat.py);
2. collect outcomes and settle them in batches; one round trip settles and claims (exchange.py);
3. look after the runners, their limits and cancellations (crew.py, limits.py);
4. renew the lease, promote, reclaim, sweep, unpark (upkeep.py), travelling with the same round trips;
5. stop its runners before its lease ends when it cannot renew it (self-fencing);
6. on shutdown finish or hand back everything, then leave.

One loop, one thread, no blocking call but a connect: every event is a readable descriptor or a deadline.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import HeadraceError
from headrace.job import Claim, JobError, Outcome, error_json
from headrace.protocol import consume
from headrace.script import Call, unread
from headrace.settings import microseconds
from headrace.worker.crew import Crew
from headrace.worker.exchange import Exchange, Selectors, Step
from headrace.worker.handout import SHARED, STALL
from headrace.worker.options import WorkerOptions
from headrace.worker.seat import Start
from headrace.worker.upkeep import Upkeep
from headrace.worker.wire import Channel, Closed, Died, Drain, FromSupervisor, Owner, Spawned

if TYPE_CHECKING:
    from headrace.app import Headrace

log = logging.getLogger("headrace.worker")

SETTLE_MOST = 1000
CLAIM_MOST = 1000
# While every runner still has work ahead, outcomes gather for this long (seconds), so that a trip carries many.
GATHER = 0.001
PLENTY = 8
NOTES_EVERY = 0.25
# A worker that cannot reach the store at shutdown leaves this long (seconds) after its runners ended.
FAREWELL = 10.0


class Dispatcher:
    """One incarnation after another of one worker's claiming side.

    Attributes:
        state: ``working``, ``draining`` (no claims; what runs may finish) or ``left``.
        owner: the current incarnation's name; empty before it is registered.
        outcomes: what ended and was not sent, each with the score at which it lines up again.
    """

    def __init__(self, app: Headrace, options: WorkerOptions, control: Channel[FromSupervisor], place: str) -> None:
        store = app.client.store
        self.app = app
        self.settings = app.settings
        self.options = options
        self.control = control
        self.place = place
        self.keys = store.keys
        self.state = "working"
        self.owner = ""
        self.outcomes: deque[tuple[Outcome, int]] = deque()
        self.kinds = tuple(sorted({task.kind for task in app.tasks.values()})) or ("process",)
        self.watched = Selectors()
        self.crew = Crew(self.settings, options, place, control, self.watched, self._conclude, self._place)
        self.upkeep = Upkeep(self.keys, self.settings, app.tasks, options.queues.names)
        patience = max(0.1, min(5.0, self.settings.lease / 3))
        self.exchange = Exchange(store.target, patience, self.watched, self.upkeep.cancels.append)
        self.exchange.revive = store.revive
        self._arrivals: deque[tuple[Call[consume.Claimed], Any]] = deque()
        self._blocked: dict[str, str] = {}
        self._request = 0
        self._empty = False
        self._gathered_since = 0.0
        self._notes_at = 0.0
        self._stop_at = float("inf")
        self._leave_at = float("inf")
        self._fenced = False
        self._finished = 0

    def run(self, predecessor: str) -> None:
        """Work until told to drain, then leave; returns when nothing is held any more.

        Args:
            predecessor: the incarnation that this one takes over from, or empty.
        """
        if predecessor:
            self.upkeep.victims.append((predecessor, True))
        self.watched.watch(self.control, self._on_control, urgent=True)
        for kind in self.kinds:
            for _ in range(self.options.runners(kind)):
                self.crew.spawn(kind)
        while self.state != "left":
            now = time.monotonic()
            pause = max(0.0, self._next(now) - now)
            gather = min(GATHER, pause) if self.crew.handout.least_held > PLENTY else 0.0
            for handler in self.watched.select(pause, gather):
                handler()
            self._tick(time.monotonic())

    def _tick(self, now: float) -> None:
        crew, upkeep = self.crew, self.upkeep
        crew.enforce(now)
        while upkeep.cancels:
            crew.cancel(upkeep.cancels.popleft(), now)
        crew.recall_stalled(now)
        crew.respawn(now)
        self.exchange.keep(now)
        if self.state == "draining":
            self._leave_when_done(now)
        elif self.options.burst or self.options.max_jobs:
            self._check_quota()
        if self.owner and now >= self._fence_at:
            self._fence()
        else:
            self._fenced = False
        if self.exchange.idle and (steps := self._steps(now) if self.owner else self._register(now)):
            self.exchange.send(steps)
        # After the next request has gone out, so that the server works on it while these are handed out.
        self._hand_out_arrivals()
        if self._empty and not self.options.burst and self.exchange.idle and (room := self._room(now)):
            names = self._order()
            self.exchange.arm([self.keys.wake(name) for name in names], self._claim_awake(room, names))

    def _next(self, now: float) -> float:
        """When the loop must run again although nothing happens."""
        handout = self.crew.handout
        times = [now + 60.0, self.exchange.next, self.crew.next, self._stop_at, self._leave_at]
        if self.exchange.idle and self.owner:
            times.append(self.upkeep.next)
            if self.outcomes:
                times.append(self._gathered_since + (GATHER if handout.least_held else 0.0))
            if self.crew.notes:
                times.append(self._notes_at)
        if any(len(seat.starts) > 1 and seat.ticketed for seat in handout.seats.values()):
            times.append(now + STALL)
        if self.owner and not self._fenced:
            times.append(self._fence_at)
        return min(times)

    # -- what goes to the store -------------------------------------------------------------------------------------

    def _register(self, now: float) -> list[Step]:
        if self.state != "working":
            return []
        owner = f"{self.place}:{os.urandom(4).hex()}"
        facts: list[str | int] = ["place", self.place, "queues", ",".join(self.options.queues.names)]
        facts += ["runners", " ".join(f"{kind}:{self.options.runners(kind)}" for kind in self.kinds)]
        call = consume.register(self.keys, owner, microseconds(self.settings.lease), facts)
        return [(call, lambda _: self._registered(owner, now))]

    def _registered(self, owner: str, sent: float) -> None:
        self.owner, self._fenced, self._empty = owner, False, False
        self.upkeep.begin(owner, sent)
        self.control.send(Owner(owner))
        self.exchange.subscribe(self.keys.mail(owner))
        log.info("worker %s serves %s", owner, ", ".join(self.options.queues.names))

    def _steps(self, now: float) -> list[Step]:
        """Everything that is due, for one round trip: notes before outcomes, outcomes before a claim."""
        steps: list[Step] = []
        room = 0 if self._empty else self._room(now)
        if self.crew.notes and not self._notes_at:
            self._notes_at = now + NOTES_EVERY
        gathered = now >= self._gathered_since + GATHER or not self.crew.handout.least_held
        if self.outcomes and (room or gathered):
            steps += [*self._notes(), self._settle()]
        elif self.crew.notes and now >= self._notes_at:
            steps += self._notes()
        if now >= self.upkeep.next:
            steps += self.upkeep.steps(now)
        if room:
            steps.append(self._claim(room, self._order()))
        return steps

    def _claim(self, room: int, names: list[str]) -> Step:
        self._request += 1
        call = consume.claim(self.keys, self.owner, self._request, room, names)
        return unread(call), lambda reply: self._arrived(call, reply, room)

    def _claim_awake(self, room: int, names: list[str]) -> Step:
        """As :meth:`_claim`, for a dispatcher that sleeps: what arrives is handed out before anything else is done."""
        call, arrived = self._claim(room, names)

        def woken(reply: Any) -> None:
            arrived(reply)
            self._hand_out_arrivals()

        return call, woken

    def _arrived(self, call: Call[consume.Claimed], reply: Any, asked: int) -> None:
        """A claim was answered; its jobs are read when the next request is on its way."""
        self._arrivals.append((call, reply))
        self._empty = consume.brought(reply) < asked

    def _settle(self) -> Step:
        batch = [self.outcomes.popleft() for _ in range(min(SETTLE_MOST, len(self.outcomes)))]
        self._request += 1
        again = [outcome.amount for outcome, _ in batch if outcome.kind in ("retry", "snoozed")]
        call = consume.settle(self.keys, self.owner, self._request, batch)
        return call, lambda reply: self._settled(reply, min(again, default=None))

    def _settled(self, reply: consume.Settled, again: int | None) -> None:
        now = time.monotonic()
        if again is not None:
            # No claim need follow that would tell: without this a retry waits for the next renewal.
            self.upkeep.expect(now + again / 1e6)
        if reply.stale:
            log.warning("refused, since a newer start owns it: %s", ", ".join(reply.stale[:10]))
        self._gathered_since = now
        if self.options.burst:
            # A worker that leaves when the queues are empty does not sleep on them: it asks with each trip.
            self._empty = False
        self.upkeep.learn_kept(reply.kept, reply.bytes, now)

    def _notes(self) -> list[Step]:
        if not self.crew.notes:
            return []
        notes, self._notes_at = self.crew.notes, 0.0
        batch = [notes.pop(token) for token in list(notes)[:SETTLE_MOST]]
        self._request += 1
        return [(consume.note(self.keys, self.owner, batch, request=self._request), lambda _: None)]

    def _room(self, now: float) -> int:
        """How many jobs may be claimed now: none while a claim waits to be woken."""
        if self.crew.freed:
            self._blocked = {queue: kind for queue, kind in self._blocked.items() if kind not in self.crew.freed}
            self.crew.freed.clear()
        if (
            self.state != "working"
            or self._fenced
            or not self.owner
            or self.exchange.armed
            or len(self._blocked) == len(self.options.queues.names)
        ):
            return 0
        coming = sum(consume.brought(reply) for _, reply in self._arrivals)
        room = self.crew.handout.room(now) - coming
        if self.options.max_jobs:
            room = min(room, self.options.max_jobs - self._finished - self.crew.running - coming)
        return max(0, min(room, CLAIM_MOST))

    def _order(self) -> list[str]:
        queues = self.options.queues
        names = queues.arrange([random.random() for _ in queues.names] if queues.weights else [])
        return [name for name in names if name not in self._blocked]

    # -- jobs -------------------------------------------------------------------------------------------------------

    def _hand_out_arrivals(self) -> None:
        while self._arrivals:
            call, reply = self._arrivals.popleft()
            self._claimed(call.parse(reply))

    def _claimed(self, reply: consume.Claimed) -> None:
        if not reply.alive:
            self.upkeep.gone = True
            return
        self.upkeep.learn_due(time.monotonic(), reply.now, reply.due)
        for id in reply.lost:
            log.error("job %s was ready, but its record is gone or alien; it left the queue", id)
        idle = not self.crew.running and not self.outcomes
        self._place(reply.jobs)
        if self.options.burst and idle and not reply.jobs:
            self._drain(now=False)

    def _check_quota(self) -> None:
        """A worker with an end in sight: its last jobs are done, or its queues look empty: ask once more."""
        if self.crew.running or self.outcomes or self._arrivals:
            return
        if self.options.max_jobs and self._finished >= self.options.max_jobs:
            self._drain(now=False)
        elif self.options.burst and self.exchange.idle:
            self._empty = False

    def _place(self, claims: list[Claim]) -> None:
        """Hand claims out; what fits nowhere goes back to the server, where another worker may take it."""
        now, starts = time.monotonic(), list[Start]()
        handout, tasks = self.crew.handout, self.app.tasks
        seats = handout.open() if self.state == "working" else {}
        for claim in claims:
            task = tasks.get(claim.task)
            if task is None:
                log.warning("job %s wants the unknown task %s: parked until a worker knows it", claim.id, claim.task)
                self._conclude(claim, "parked")
                continue
            try:
                plan = task.plan(claim.options)
            except (HeadraceError, msgspec.MsgspecError) as error:
                text = error_json(JobError(type="Corrupt", message=str(error), attempt=claim.attempt))
                self._conclude(claim, "corrupt", text, microseconds(self.settings.keep_failed))
                continue
            if claim.crashes and task.kind in SHARED:
                seat = self.crew.isolated(task.kind)
            else:
                seat = handout.choose(seats.get(task.kind, []), claim.task, now, suspect=claim.crashes > 0)
            if seat is None:
                self._conclude(claim, "released")
                self._blocked[claim.queue] = task.kind
                continue
            start = Start(claim, plan, seat)
            handout.assign(seat, start, now)
            starts.append(start)
        self.crew.give(starts, now)

    def _conclude(self, claim: Claim, kind: str, data: bytes = b"", amount: int = 0) -> None:
        if not self.outcomes:
            self._gathered_since = time.monotonic()
        if kind != "released":
            self._finished += 1
        self.outcomes.append((Outcome(claim.id, claim.token, kind, data, amount), claim.ready))

    # -- the supervisor ---------------------------------------------------------------------------------------------

    def _on_control(self) -> None:
        try:
            messages = self.control.receive_with_descriptors()
        except Closed:
            self._orphaned()
            return
        for message in messages:
            match message:
                case Spawned():
                    self.crew.spawned(message, [self.control.descriptors.popleft() for _ in range(4)])
                case Died():
                    self.crew.died(message)
                case Drain():
                    self._drain(now=message.now)

    def _orphaned(self) -> None:
        """The supervisor died, and nobody restarts us: its runners are stopped, what they ran is settled, we leave."""
        self.watched.unwatch(self.control)
        log.error("the supervisor died: stopping")
        self.crew.abandon()
        self.state = "draining"
        self._stop_at = time.monotonic()

    # -- lease lost, shutdown ---------------------------------------------------------------------------------------

    @property
    def _fence_at(self) -> float:
        """When runners must be stopped, so that nothing runs here that somebody else may start."""
        return 0.0 if self.upkeep.gone else self.upkeep.lease_until - min(1.0, self.settings.lease / 10)

    def _fence(self) -> None:
        """Stop what runs before somebody else may start it, and begin a new incarnation when the store is back."""
        if not self._fenced:
            log.error("the lease of %s could not be kept: stopping its jobs", self.owner)
            self._fenced = True
            self.crew.kill_busy()
        self.exchange.disarm()
        if self.crew.running or not self.exchange.idle or self.exchange.armed:
            return
        if self.outcomes:
            # Nobody may have taken over, if the server itself was away: then these are handed back, uncharged.
            self.exchange.send([self._settle()])
        else:
            self.upkeep.victims.append((self.owner, True))
            self.owner = ""

    def _drain(self, *, now: bool) -> None:
        if self.state == "working":
            log.info("stopping: %d jobs run", self.crew.running)
            self.state = "draining"
            self.crew.working = False
            self._stop_at = time.monotonic() + (0.0 if now else self.settings.grace)
            self.exchange.disarm()
            self.crew.recall_all()
        elif now:
            self._stop_at = time.monotonic()

    def _leave_when_done(self, now: float) -> None:
        self.crew.dismiss_idle()
        if self.crew.running:
            if now >= self._stop_at:
                log.warning("the grace is over: %d jobs are stopped and handed back", self.crew.running)
                self.crew.kill_all()
                self._stop_at = float("inf")
            return
        self._leave_at = min(self._leave_at, now + FAREWELL)
        if not self.owner or now >= self._leave_at:
            self.state = "left"
        elif self.exchange.idle and not (self.exchange.armed or self.outcomes or self.crew.notes):
            self.exchange.send([(consume.retire(self.keys, self.owner), self._retired)])

    def _retired(self, reply: bool) -> None:
        if not reply:
            log.warning("%s still holds jobs; they come back when its lease is over", self.owner)
        self.state = "left"
