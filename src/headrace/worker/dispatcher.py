"""The dispatcher: the only one in a worker that talks to the store for claiming. Never runs user code.

Its duties, each with its own module:

1. claim batches and hand them out (handout.py, lines.py, places.py, seat.py);
2. collect outcomes and settle them in batches; one round trip settles and claims (exchange.py);
3. look after the runners, their limits and cancellations (crew.py, limits.py);
4. renew the lease, promote, reclaim, sweep, unpark (upkeep.py), travelling with the same round trips;
5. stop its runners before its lease ends when it cannot renew it (self-fencing);
6. agree with the store on what it holds, after each connection and when their counts differ (reconcile.py, starts.py);
7. on shutdown finish or hand back everything, then leave.

One loop that never waits for anything else: every event is a readable descriptor or a deadline. A thread makes the
connections (connector.py).
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import HeadraceError, OptionsError
from headrace.job import Claim, JobError, Outcome, error_json
from headrace.keys import is_node, is_ordered
from headrace.options import KINDS
from headrace.protocol import admin, consume
from headrace.script import Call, unread
from headrace.settings import microseconds
from headrace.task import budgets
from headrace.worker import job_log, roster
from headrace.worker.admission import ANEW_AFTER, LOOK_EVERY, Known, Wish, awaited, want
from headrace.worker.crew import Crew
from headrace.worker.exchange import CALLED, HURRY, Exchange, Selectors, Step
from headrace.worker.growth import Growth
from headrace.worker.handout import SHARED, STALL
from headrace.worker.inputs import Inputs, too_large
from headrace.worker.journal import starts
from headrace.worker.lines import MOST as MOST_WAITING
from headrace.worker.lines import Lines
from headrace.worker.options import WorkerOptions
from headrace.worker.outcomes import before_start
from headrace.worker.pauses import Pauses
from headrace.worker.places import Waiting
from headrace.worker.reconcile import Reconciler
from headrace.worker.seat import Start
from headrace.worker.status import status
from headrace.worker.streams import STREAMS
from headrace.worker.tally import Tally
from headrace.worker.upkeep import Upkeep
from headrace.worker.wire import (
    Channel,
    Closed,
    Died,
    Drain,
    FromSupervisor,
    Owner,
    Rehearsed,
    Resize,
    Size,
    Spawned,
)

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.task import Plan

log = logging.getLogger("headrace.worker")

# What one settle may cost the server, in ends of plain jobs; that of a node, with its children, is worth several.
SETTLE_MOST, NODE = 600, 3
CLAIM_MOST = 300
# While every runner still has work ahead, outcomes gather for this long (seconds), so that a trip carries many.
GATHER = 0.001
PLENTY = 8
NOTES_EVERY = 0.25
# Renewals in a row that count other jobs as ours than we do, before we look which: a claim may be under way in one.
DOUBTS = 2
# A worker that cannot reach the store at shutdown leaves this long (seconds) after its runners ended.
FAREWELL = 10.0
# Of the shutdown timeout, jobs that still run have this part (one in so many) to clean up after they were interrupted,
# but no more than after a soft limit.
CLEAN_UP = 5
# The last runners may take this long (seconds) to leave before nobody listens: a little more than their hooks have.
LAST_WORDS = 5.5


# What sends a job back to the server; of a broadcast it is an end, since no other worker may run it.
NO_END = ("released", "parked", "snoozed", "retry")
_LEFT = error_json(
    JobError(type="Cancelled", message="its worker could not run it: no such task or runner, or it stops")
)
_UNKNOWN = error_json(
    JobError(type="Lost", message="the store and its worker have both forgotten how this start ended")
)


class Dispatcher:
    """One incarnation after another of one worker's claiming side.

    Attributes:
        state: ``working``, ``draining`` (no claims; what runs may finish) or ``left``.
        owner: the current incarnation's name; empty before it is registered.
        outcomes: what ended and was not sent.
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
        self.outcomes: deque[tuple[Outcome, Claim]] = deque()
        self.kinds = tuple(sorted({task.kind for task in app.tasks.values()})) or ("process",)
        self.watched = Selectors()
        self.crew = Crew(self.settings, options, place, control, self.watched, self._conclude, self._again)
        self.lines = Lines(self.crew.handout)
        self.upkeep = Upkeep(self.keys, self.settings, app.tasks, options.queues.names)
        self.upkeep.facts = self._news
        patience = max(0.1, min(5.0, self.settings.lease / 3))
        self.exchange = Exchange(store.target, patience, self.watched, self._mailed, self.crew.stir)
        self.exchange.revive = store.revive
        self.inputs = Inputs(self.keys)
        self.growth = Growth(self.keys, self._conclude)
        self.reconciler = Reconciler(
            self.keys, self.exchange.ahead, self._settled_again, self._hand_back, self._stop_start
        )
        self.exchange.first = self._first
        self.upkeep.expected = self._expected
        self.pauses = Pauses(app)
        # The outcomes that get a line in the log.
        self._logged = job_log.kinds(self.settings)
        self.tally = Tally(app.stats, app.stats.of_workers(), place) if self.settings.stats_jobs else None
        self.crew.tally = self.tally
        self._arrivals: deque[tuple[Call[consume.Claimed], Any, int]] = deque()
        self._known = Known(frozenset(self.kinds))
        # Kinds for which no runner had room when a job came, whatever had been reckoned.
        self._refused = set[str]()
        # The tasks of each kind, for claims that pass over some.
        self._tasks: dict[str, list[str]] = {kind: [] for kind in self.kinds}
        for task in app.tasks.values():
            self._tasks[task.kind].append(task.name)
        self._look_at, self._anew_at = 0.0, float("inf")
        self._request = 0
        self._gathered_since = 0.0
        self._notes_at = 0.0
        self._stop_at = self._interrupt_at = float("inf")
        self._leave_at = float("inf")
        self._fenced = False
        # Whether the store had still counted jobs as ours when we were about to leave.
        self._refused_once = False
        self._finished = 0
        # Since when there is nothing to run.
        self._idle_since = float("inf")
        # What the last renewal said of the runners; whether there are others than were said.
        self._told, self._resized = "", False
        # Broadcasts announced so far; the last one whose jobs are all claimed; the number of the claim that asks for
        # more (0: none does), and the last broadcast that it covers.
        self._calls = self._answered = 0
        self._asks = (0, 0)
        # Who asked for the roster.
        self._asked = ""
        # What the server's clock is ahead of our monotonic one, microseconds.
        self._ahead_of_us = 0.0

    def run(self, predecessor: str) -> None:
        """Work until told to drain, then leave; returns when nothing is held any more.

        Args:
            predecessor: the incarnation that this one takes over from, or empty.
        """
        if predecessor:
            self.upkeep.victims.append((predecessor, True))
        self.watched.watch(self.control, self._on_control, urgent=True)
        self.watched.watch(self.pauses, self._on_pauses, urgent=True)
        for kind in self.kinds:
            self.crew.resize(kind, self.options.runners(kind))
        while self.state != "left":
            now = time.monotonic()
            if now >= STREAMS.next:
                STREAMS.pass_on()
            pause = max(0.0, self._next(now) - now)
            gather = min(GATHER, pause) if self.crew.handout.least_held > PLENTY else 0.0
            for handler in self.watched.select(pause, gather):
                handler()
            self._tick(time.monotonic())
        self.pauses.close()
        if self.tally is not None:
            self.tally.pass_on()
            self.app.stats.close()
        self._see_off()

    def _see_off(self) -> None:
        """Stay while runners leave: what their exit hooks write to stderr goes through here."""
        end = time.monotonic() + LAST_WORDS
        self.crew.dismiss_idle()
        while self.crew.present and (left := end - time.monotonic()) > 0:
            for handler in self.watched.select(left, 0.0):
                handler()
        if self.crew.present:
            log.warning("runners that do not leave are left to the supervisor")

    def _tick(self, now: float) -> None:
        crew, upkeep = self.crew, self.upkeep
        if self.tally is not None and now >= self.tally.next:
            self.tally.pass_on()
        crew.enforce(now)
        while upkeep.cancels:
            self._cancel(upkeep.cancels.popleft(), now)
        crew.recall_stalled(now)
        crew.respawn(now)
        if crew.waste.news and self.state == "working" and (request := crew.waste.request()) is not None:
            self.crew.ask(request)
        if crew.handout.changed and not self._fenced:
            crew.give(self.lines.serve(now, self._in_time), now)
        self.exchange.keep(now)
        if self.state == "draining":
            self._leave_when_done(now)
        elif self.options.burst or self.options.max_jobs or self.options.max_idle:
            self._check_quota(now)
        if self.owner and now >= self._fence_at:
            self._fence()
        else:
            self._fenced = False
        if self.exchange.idle and (steps := self._steps(now) if self.owner else self._register(now)):
            self.exchange.send(steps)
        # After the next request has gone out, so that the server works on it while these are handed out.
        self._hand_out_arrivals()
        if self.exchange.armed:
            if self._claimable(now) is not None:
                # What it sleeps for is less than what it can take by now.
                self.exchange.disarm()
        elif self.exchange.idle and not self.options.burst:
            self._sleep(now)

    def _sleep(self, now: float) -> None:
        """Sleep on the queues, if there is room and nothing to claim."""
        wish = self._wish(now)
        if wish is None or wish.now:
            return
        # Each job that comes to a paused queue would wake us, in vain. What is claimed, the server decides.
        names = awaited(self.options.queues.names, self.pauses.names, self.kinds, self._known)
        if names:
            self.exchange.arm([self.keys.wake(name) for name in names], self._claim_awake(wish))

    def _cancel(self, id: str, now: float) -> None:
        waiting = self.lines.cancel(id) if self.lines.waiting else None
        if waiting is None:
            self.crew.cancel(id, now)
        else:
            error = JobError(type="Cancelled", message="cancelled before it started")
            self._conclude(waiting[0], "cancelled", error_json(error), waiting[1].failure_ttl)

    def _next(self, now: float) -> float:
        """When the loop must run again although nothing happens."""
        handout = self.crew.handout
        times = [now + 60.0, self.exchange.next, self.crew.next, self._interrupt_at, self._stop_at, self._leave_at]
        times.append(STREAMS.next)
        if self.tally is not None:
            times.append(self.tally.next)
        if self.exchange.idle and self.owner:
            times.append(self.upkeep.next)
            if self.state == "draining" and not (self._busy or self.exchange.armed or self.crew.notes):
                # A claim that brought nothing may be what ended the work: no other event will say so.
                times.append(now)
            if self.inputs.wanting or self.growth.wanting:
                times.append(now)
            if self.outcomes:
                times.append(self._gathered_since + (GATHER if handout.least_held else 0.0))
            if self.crew.notes:
                times.append(self._notes_at)
            times.append(self._claim_at(now))
        if any(len(seat.starts) > 1 and seat.ticketed for seat in handout.seats.values()):
            times.append(now + STALL)
        if self.owner and not self._fenced:
            times.append(self._fence_at)
        if self.options.max_idle and self.exchange.idle and self.state == "working":
            times.append(self._idle_since + self.options.max_idle)
        return min(times)

    def _claim_at(self, now: float) -> float:
        """When there is something to claim although nothing happens."""
        if self.exchange.armed:
            return self._anew_at
        if self._claimable(now) is not None:
            # What came may have gone into lines, with a runner still free: no end of a job will say so.
            return now
        looks_on = self._known.beyond and any(self._rooms(now, 0).values())
        return max(self._look_at, now + LOOK_EVERY) if looks_on else float("inf")

    # -- what goes to the store -------------------------------------------------------------------------------------

    def _register(self, now: float) -> list[Step]:
        if self.state != "working":
            return []
        owner = f"{self.place}:{os.urandom(4).hex()}"
        facts: list[str | int] = ["place", self.place, "queues", ",".join(self.options.queues.names)]
        facts += [*self._sizes(), *budgets(self.app.tasks, self.settings.max_crashes)]
        tasks = {name: task.kind for name, task in self.app.tasks.items()}
        call = consume.register(self.keys, owner, microseconds(self.settings.lease), facts, tasks=tasks)
        return [(call, lambda spared: self._registered(owner, now, spared))]

    def _registered(self, owner: str, sent: float, spared: int) -> None:
        self.owner, self._fenced, self._told = owner, False, ""
        self._known = Known(frozenset(self.kinds))
        self.growth.owner = owner
        self.reconciler.begin(owner)
        self._asks = (0, 0)
        self.upkeep.begin(owner, sent, spared / 1e6)
        self.crew.waste.changed = bool(self.crew.waste.rows)
        self.crew.ask(Owner(owner))
        self.exchange.subscribe(self.keys.mail(owner))
        log.info("worker %s serves %s", owner, ", ".join(self.options.queues.names))

    def _mailed(self, text: str) -> None:
        """What others wrote: a question, news (``parked:TASK``), a command (``scale:KIND:SIZE``), a job to cancel."""
        verb, _, rest = text.partition(":")
        kind, _, size = rest.partition(":")
        if text == CALLED:
            self._calls += 1
            self.exchange.disarm()
        elif text == HURRY:
            self.upkeep.hurry()
        elif text.startswith(roster.ASKED):
            self._asked = text.removeprefix(roster.ASKED)
        elif verb == "parked" and rest in self.app.tasks:
            self.upkeep.parked.add(rest)
        elif verb != "scale":
            self.upkeep.cancels.append(text)
        elif kind in self.kinds and size.isdecimal():
            self._scale(kind, int(size))
        else:
            log.warning("cannot do what was asked of this worker: %.100r", text)

    def _steps(self, now: float) -> list[Step]:
        """Everything that is due, for one round trip: notes before outcomes, outcomes before a claim."""
        steps: list[Step] = []
        wish = None if self.exchange.armed else self._claimable(now)
        if self.crew.notes and not self._notes_at:
            self._notes_at = now + NOTES_EVERY
        gathered = now >= self._gathered_since + GATHER or not self.crew.handout.least_held
        if self.outcomes and (wish or gathered):
            steps += [*self._notes(), self._settle()]
        elif self.crew.notes and now >= self._notes_at:
            steps += self._notes()
        if now >= self.upkeep.next:
            steps += self.upkeep.steps(now)
        if self.upkeep.doubts >= DOUBTS:
            # Behind the settle and before the claim, so that the store has seen all that we know.
            self.upkeep.doubts = 0
            steps.append(self.reconciler.look())
        if self._asked:
            told = roster.write(roster.taken(self._asked, self.crew.handout.seats.values()))
            steps.append((admin.tell(self.keys, self.owner, told), lambda _: None))
            self._asked = ""
        steps += [*self.growth.steps(), *(self._reading(step) for step in self.inputs.steps())]
        if wish is not None:
            steps += self._unparking(now, wish)
            steps.append(self._claim(wish, [*self._private(), *self._order()]))
        return steps

    def _unparking(self, now: float, wish: Wish) -> list[Step]:
        """What others parked since they do not know it, as far as there is room: the claim behind it takes it."""
        rooms = self._rooms(now, 0) if self.upkeep.parked else {}
        kinds = {task: self.app.tasks[task].kind for task in sorted(self.upkeep.parked)}
        return [
            self.upkeep.unpark(task, min(rooms[kind], wish.limit)) for task, kind in kinds.items() if kind in wish.kinds
        ]

    def _reading(self, step: Step) -> Step:
        """Outputs that nodes wait for: whose are complete is handed out."""
        call, read = step

        def handed(reply: Any) -> None:
            read(reply)
            self._feed()

        return call, handed

    def _claim(self, wish: Wish, names: list[str]) -> Step:
        self._request += 1
        number = self._request
        passing = [(kind, most, self._tasks[kind]) for kind, most in wish.passing.items()]
        call = consume.claim(self.keys, self.owner, number, wish.limit, names, passing=passing, cursors=wish.cursors)
        return unread(call), lambda reply: self._arrived(call, reply, wish, number)

    def _private(self) -> list[str]:
        """The line of what was broadcast to this worker, while there may be something in it."""
        if not self._called:
            return []
        self._asks = (self._request + 1, self._calls)
        return [f"@{self.owner}"]

    @property
    def _called(self) -> bool:
        """Whether something may have been broadcast to us that no claim under way asks for."""
        return self._calls != self._answered and not self._asks[0]

    def _claim_awake(self, wish: Wish) -> Step:
        """As :meth:`_claim`, for a dispatcher that sleeps: what arrives is handed out before anything else is done."""
        call, arrived = self._claim(wish, self._order())

        def woken(reply: Any) -> None:
            arrived(reply)
            # A token may be left of a job that is claimed already. Only a paused queue goes on to wake in vain.
            if self.exchange.woken and not consume.brought(reply) and consume.halted(reply):
                self.pauses.look()
            self._hand_out_arrivals()

        return call, woken

    def _arrived(self, call: Call[consume.Claimed], reply: Any, wish: Wish, number: int) -> None:
        """A claim was answered; its jobs are read when the next request is on its way."""
        self._arrivals.append((call, reply, number))
        self._known = self._known.answered(wish, consume.brought(reply), consume.looked(reply))
        now = time.monotonic()
        self._look_at = now + LOOK_EVERY
        if wish.cursors and not wish.now and self.exchange.woken:
            self._anew_at = min(self._anew_at, now + ANEW_AFTER)

    def _settle(self) -> Step:
        batch: list[tuple[Outcome, Claim]] = []
        room = SETTLE_MOST
        while self.outcomes and room > 0:
            batch.append(self.outcomes.popleft())
            room -= NODE if is_node(batch[-1][0].id) else 1
        self._request += 1
        again = [outcome.amount for outcome, _ in batch if outcome.kind in ("retry", "snoozed")]
        ttl = microseconds(self.settings.failure_ttl)
        ends = [(outcome, claim.score) for outcome, claim in batch]
        number = self._request
        call = consume.settle(self.keys, self.owner, number, ends, ttl, starts=starts(batch))
        mine = self.reconciler.starts
        mine.ended(batch, call, number, time.monotonic())

        def settled(reply: consume.Settled) -> None:
            mine.settled = number
            self._settled(reply, batch, min(again, default=None))

        return call, settled

    def _settled(self, reply: consume.Settled, batch: list[tuple[Outcome, Claim]], again: int | None) -> None:
        now = time.monotonic()
        if again is not None:
            # No claim need follow that would tell: without this a retry waits for the next renewal.
            self.upkeep.expect(now + again / 1e6)
        if not reply.repeated:
            self._learn(batch, reply.stale)
        if reply.stale:
            log.warning("refused, since a newer start owns it: %s", ", ".join(reply.stale[:10]))
        self._gathered_since = now
        if self.options.burst:
            # A worker that leaves when the queues are empty does not sleep on them: it asks with each trip.
            self._known = self._known.may_wait(self.kinds)
        self.upkeep.learn_kept(reply.kept, reply.bytes, now)
        self.upkeep.learn_chores(reply.chores)

    def _learn(self, batch: list[tuple[Outcome, Claim]], stale: list[str]) -> None:
        """What nodes of workflows returned is known here from now on."""
        refused = set(stale)
        for outcome, claim in batch:
            if claim.facts and outcome.kind == "succeeded" and claim.id not in refused:
                self.inputs.learn(claim, outcome.data)
        if self.inputs:
            self._feed()

    def _notes(self) -> list[Step]:
        if not self.crew.notes:
            return []
        notes, self._notes_at = self.crew.notes, 0.0
        batch = [notes.pop(token) for token in list(notes)[:SETTLE_MOST]]
        self._request += 1
        return [(consume.note(self.keys, self.owner, batch, request=self._request), lambda _: None)]

    def _claimable(self, now: float) -> Wish | None:
        """The claim that is to be made at once, if any."""
        reasons = self._known.waiting or self._known.beyond or self.upkeep.parked or self._asks_anyway
        wish = self._wish(now) if reasons else None
        return wish if wish is not None and wish.now else None

    @property
    def _asks_anyway(self) -> bool:
        """Whether there may be jobs of which no claim told: a broadcast, or nodes that are tended in the same trip."""
        return self._called or (self.upkeep.tends and not self.exchange.armed)

    def _wish(self, now: float) -> Wish | None:
        """What is wanted of the queues now."""
        coming = sum(consume.brought(reply) for _, reply, _ in self._arrivals) + len(self.inputs)
        most = CLAIM_MOST
        if self.options.max_jobs:
            most = min(most, self.options.max_jobs - self._finished - self.crew.running - self.lines.waiting - coming)
        if now >= self._anew_at:
            self._known, self._anew_at = self._known.looked_anew(), float("inf")
        look, known = now >= self._look_at, self._known
        if self.upkeep.parked:
            known = known.may_wait(self.app.tasks[task].kind for task in self.upkeep.parked)
        return want(known, self._rooms(now, coming), most, ask=self._asks_anyway, look=look)

    def _rooms(self, now: float, coming: int) -> dict[str, int]:
        """How many jobs of each kind may be claimed, when so many are here that no runner has yet."""
        if self.crew.freed:
            self._refused -= self.crew.freed
            self.crew.freed.clear()
        if self.state != "working" or self._fenced or not self.owner or self.lines.waiting >= MOST_WAITING:
            return {}
        rooms = self.crew.handout.rooms(now)
        return {kind: max(0, room - coming) for kind, room in rooms.items() if kind not in self._refused}

    def _order(self) -> list[str]:
        queues = self.options.queues
        return list(queues.arrange([random.random() for _ in queues.names] if queues.weights else []))

    # -- jobs -------------------------------------------------------------------------------------------------------

    def _hand_out_arrivals(self) -> None:
        while self._arrivals:
            call, reply, number = self._arrivals.popleft()
            self._claimed(call.parse(reply), number)

    def _claimed(self, reply: consume.Claimed, number: int) -> None:
        if not reply.alive:
            self.upkeep.gone = True
            return
        now = time.monotonic()
        self.reconciler.starts.took(reply.jobs, number)
        self._ahead_of_us = reply.now - now * 1e6
        self.upkeep.learn_due(now, reply.now, reply.due)
        for id in reply.lost:
            log.error("job %s was ready, but its record is gone or alien; it left the queue", id)
        for alien in reply.aliens:
            self._quarantine(alien.id, alien.token)
        if number == self._asks[0]:
            # While it brings something there may be more.
            if not any(claim.queue[0] == "@" for claim in reply.jobs):
                self._answered = self._asks[1]
            self._asks = (0, 0)
        idle = self.options.burst and not self._busy and not self.upkeep.owes(now)
        self._place([claim for claim in reply.jobs if self._startable(claim, reply.now)])
        if self.inputs:
            # The outputs may be known from the batch before.
            self._feed()
        # Ends that are on their way since that claim may have made the next nodes of their workflows ready.
        if idle and not reply.jobs and not self._known.waiting and number == self._request:
            self._drain(now=False)

    def _quarantine(self, id: str, token: int) -> None:
        log.error("job %s: its id, its priority or its record cannot be read: quarantined", ascii(id))
        error = JobError(type="Corrupt", message="its id, its priority or its record cannot be read")
        self._end_unread(id, token, "corrupt", error_json(error))

    def _end_unread(self, id: str, token: int, kind: str, error: bytes) -> None:
        """End a start of which no more is known than its id and its token."""
        self.reconciler.starts.held[token] = id
        outcome = Outcome(id, token, kind, error, microseconds(self.settings.failure_ttl))
        self.outcomes.append((outcome, Claim(id, token, "", 0, "", b"")))

    def _startable(self, claim: Claim, now: int) -> bool:
        """Whether the job may start at all; one that may not ends here."""
        # Most jobs have no such time, and every job passes here.
        ended = (
            before_start(claim, now, microseconds(self.settings.failure_ttl))
            if claim.expires or not claim.task
            else None
        )
        if ended is not None:
            if ended[0] == "corrupt":
                log.error("job %s: its record names no task", claim.id)
            self._conclude(claim, *ended)
        elif claim.parents:
            self.inputs.add(claim)
        else:
            return True
        return False

    def _in_time(self, waiting: Waiting) -> bool:
        """Whether a job that waited here may still start; one whose time is over ends."""
        now = round(self._ahead_of_us + time.monotonic() * 1e6)
        ended = before_start(waiting[0], now, microseconds(self.settings.failure_ttl))
        if ended is not None:
            self._conclude(waiting[0], *ended)
        return ended is None

    def _feed(self) -> None:
        """Hand out the nodes whose inputs are complete."""
        fed: list[Claim] = []
        for inputs, claims in self.inputs.ready():
            if not (text := too_large(inputs)):
                fed += [msgspec.structs.replace(claim, inputs=inputs) for claim in claims]
                continue
            for claim in claims:
                error = error_json(JobError(type="PayloadTooLarge", message=text, attempt=claim.attempt))
                self._conclude(claim, "failed", error, microseconds(self.settings.failure_ttl))
        self._place(fed)

    @property
    def _busy(self) -> bool:
        """Whether jobs run or are about to, or ends are to be settled."""
        return bool(self.crew.running or self.lines.waiting or self.outcomes or self.inputs or self.growth)

    def _check_quota(self, now: float) -> None:
        """A worker with an end in sight: its last jobs are done, or its queues look empty: ask once more."""
        # Who has lost its server does not know whether there is something to run.
        if self._busy or self._arrivals or not self.owner:
            self._idle_since = float("inf")
            return
        # Nor does one that has not asked yet, since no runner is there to take it.
        self._idle_since = float("inf") if self._known.waiting else min(self._idle_since, now)
        if self.options.max_jobs and self._finished >= self.options.max_jobs:
            self._drain(now=False)
        elif self.options.max_idle and self.exchange.idle and now >= self._idle_since + self.options.max_idle:
            log.info("there was nothing to run for %g s", self.options.max_idle)
            self._drain(now=False)
        elif self.options.burst and self.exchange.idle and not self.upkeep.owes(time.monotonic()):
            self._known = self._known.may_wait(self.kinds)

    def _place(self, claims: list[Claim]) -> None:
        """Hand claims out; what fits nowhere goes back to the server, where another worker may take it."""
        now, starts = time.monotonic(), list[Start]()
        handout, working = self.crew.handout, self.state == "working" and not self._fenced
        for claim in claims:
            found = self._plan(claim)
            if found is None:
                continue
            kind, plan = found
            seat = None
            if working:
                strategy = plan.strategy or self._strategy(claim)
                if strategy == "available" and claim.queue[0] == "@":
                    # It cannot go back to the server, where nobody else would run it.
                    strategy = "least_loaded"
                suspect = claim.crashes > 0
                if suspect and kind in SHARED:
                    seat = self.crew.isolated(kind)
                elif strategy == "available" or (strategy == "hash" and not claim.key):
                    seat = handout.choose(kind, claim.task, now, suspect=suspect)
                elif self.lines.add((claim, plan), kind, strategy):
                    continue
            if seat is None:
                self._conclude(claim, "released")
                if working:
                    # No runner has room. While none may start anything no end of a job would lift this.
                    self._refused.add(kind)
                    self._known = self._known.handed_back(kind)
                continue
            start = Start(claim, plan, seat)
            handout.assign(seat, start, now)
            starts.append(start)
        if working and handout.changed:
            starts += self.lines.serve(now, self._in_time)
        self.crew.give(starts, now)

    def _strategy(self, claim: Claim) -> str:
        """Where neither job nor task says. Of an ordered job's key no other one runs, so that any runner will do."""
        return "hash" if claim.key and not is_ordered(claim.id) else self.options.strategy

    def _plan(self, claim: Claim) -> tuple[str, Plan] | None:
        """What kind of runner a job needs, and how to run it; None for one that cannot run here, which ends."""
        task = self.app.tasks.get(claim.task)
        if task is None:
            log.warning("job %s wants the unknown task %s: parked until a worker knows it", claim.id, claim.task)
            self._conclude(claim, "parked")
            return None
        try:
            return task.kind, task.plan(claim.options)
        except (HeadraceError, msgspec.MsgspecError) as error:
            text = error_json(JobError(type="Corrupt", message=str(error), attempt=claim.attempt))
            self._conclude(claim, "corrupt", text, microseconds(self.settings.failure_ttl))
            return None

    def _again(self, starts: list[Start]) -> None:
        """Work was taken back from a runner: it goes to another one, or waits where its strategy wants it."""
        bound = [start for start in starts if start.bound] if self.state == "working" else []
        if bound:
            self.lines.put_back(bound)
        self._place([start.claim for start in starts if not (bound and start.bound)])

    def _hand_back_lines(self) -> None:
        """What waits for a place goes back to the server, where another worker may take it."""
        for claim, _ in self.lines.take_all():
            self._conclude(claim, "released")

    def _conclude(self, claim: Claim, kind: str, data: bytes = b"", amount: int = 0, cost: int = 0) -> None:
        self.lines.ended(claim.token)
        if kind in NO_END and claim.queue[0] == "@":
            kind, data, amount = (
                "failed" if kind == "retry" else "cancelled",
                data or _LEFT,
                microseconds(self.settings.failure_ttl),
            )
        if kind == "growing":
            self.growth.begin(claim, data, amount)
            return
        if not self.outcomes:
            self._gathered_since = time.monotonic()
        if kind in self._logged:
            self._log_end(claim, kind, data, amount, cost)
        if kind != "released":
            self._finished += 1
            if self.tally is not None:
                self.tally.ended(claim, kind, self._gathered_since, cost)
        self.outcomes.append((Outcome(claim.id, claim.token, kind, data, amount), claim))

    def _log_end(self, claim: Claim, kind: str, data: bytes, amount: int, cost: int) -> None:
        error = job_log.error_of(kind, data)
        # A crash with a traceback is a fault of Headrace's own code.
        shown = error is not None and error.traceback and (kind == "crashed" or log.isEnabledFor(logging.DEBUG))
        extra: dict[str, Any] = {"facts": job_log.facts(claim, kind)}
        if error is not None and shown:
            extra["traceback"] = error.traceback
        log.log(job_log.level(kind), "%s", job_log.line(claim, kind, error, amount, cost), extra=extra)

    # -- the supervisor ---------------------------------------------------------------------------------------------

    def _on_control(self) -> None:
        if self.control.full:
            self.crew.ask()
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
                case Resize():
                    main = next(kind for kind in KINDS if kind in self.kinds)
                    self._scale(main, self.options.at_once(main) + message.by)
                case Size():
                    self._resize(message.kind, message.size)
                case Drain():
                    self._drain(now=message.now)
                case Rehearsed():
                    self.crew.waste.judged(message)
                    self.crew.refork(message.done)
                    self._log_waste()

    def _log_waste(self) -> None:
        for line in self.crew.waste.lines():
            log.warning("%s", line)

    def _tell_waste(self) -> Sequence[str]:
        """Say what jobs lose to what runners repeat: in the log, and as a fact of this worker with this renewal."""
        self._log_waste()
        waste = self.crew.waste
        return ["startup_profile", waste.summary()] if waste.changed else []

    def _on_pauses(self) -> None:
        """Other queues are paused than before: sleep on those that are not."""
        self.pauses.hear()
        self.exchange.disarm()

    def _scale(self, kind: str, size: int) -> None:
        """Somebody wishes so many jobs of a kind at once: those that come after us keep to it."""
        try:
            self.options.resized(kind, size)
        except OptionsError as error:
            log.warning("not resized: %s", error)
            return
        self.crew.ask(Size(kind, size))
        self._resize(kind, size)

    def _resize(self, kind: str, size: int) -> None:
        """Run so many jobs of a kind at once from now on; what is removed finishes what it runs."""
        if self.state != "working" or size == self.options.at_once(kind):
            return
        log.info("%s: %d at once, %d before", kind, size, self.options.at_once(kind))
        self.options = self.crew.options = self.options.resized(kind, size)
        if kind not in self.kinds:
            return
        if kind in SHARED:
            self.crew.renew(kind)
        else:
            for place in self.crew.resize(kind, size):
                self.lines.vacate(place)
        self._resized = True
        self.upkeep.hurry()

    def _sizes(self) -> list[str]:
        """How many of each kind there are, for people."""
        runners = " ".join(f"{kind}:{self.options.runners(kind)}" for kind in self.kinds)
        return ["runners", runners, "sizes", " ".join(f"{kind}:{self.options.at_once(kind)}" for kind in self.kinds)]

    def _news(self) -> list[str | int]:
        """What has changed of what this worker says of itself, for a renewal: field, value, ..."""
        facts: list[str | int] = [*self._tell_waste(), *(self._sizes() if self._resized else [])]
        self._resized = False
        crew = status(self.crew.handout.seats.values(), self._ahead_of_us)
        if crew != self._told:
            self._told = crew
            facts += ["crew", crew]
        return facts

    def _orphaned(self) -> None:
        """The supervisor died, and nobody restarts us: its runners are stopped, what they ran is settled, we leave."""
        self.watched.unwatch(self.control)
        log.error("the supervisor died: stopping")
        self.crew.abandon()
        self.state = "draining"
        self._stop_at = time.monotonic()

    # -- what the store forgot --------------------------------------------------------------------------------------

    def _first(self) -> list[Step]:
        """At a connection, before anything that was under way is sent again: see whether the store remembers all."""
        if not self.owner:
            return []
        self.growth.restart()
        return [self.reconciler.look()]

    def _expected(self) -> int:
        """How many jobs the store should count as ours."""
        return len(self.reconciler.starts.held) + sum(consume.leased(reply) for _, reply, _ in self._arrivals)

    def _settled_again(self, reply: consume.Settled) -> None:
        self._settled(reply, [], None)
        # It tells when what became scheduled is due, and what else there is to do.
        self.upkeep.hurry()

    def _hand_back(self, id: str, token: int) -> None:
        """Nobody here knows this start. It may have run: one that may start at most once fails."""
        self._end_unread(id, token, "interrupted", _UNKNOWN)

    def _stop_start(self, id: str) -> None:
        self._cancel(id, time.monotonic())

    # -- lease lost, shutdown ---------------------------------------------------------------------------------------

    @property
    def _fence_at(self) -> float:
        """When runners must be stopped, so that nothing runs here that somebody else may start."""
        return 0.0 if self.upkeep.gone else self.upkeep.lease_until - min(1.0, self.settings.lease / 10)

    def _fence(self) -> None:
        """Stop what runs before somebody else may start it, and hand it back when the store is there again.

        The incarnation goes on if its lease can be renewed then, since nobody has taken over; else a new one begins.
        """
        if not self._fenced:
            log.error("the lease of %s could not be kept: stopping its jobs", self.owner)
            self._fenced = True
            self.crew.kill_busy()
        self.exchange.disarm()
        self._hand_back_lines()
        for claim in self.inputs.take_all():
            self._conclude(claim, "released")
        for claim in self.growth.drop_all():
            # It ran, but what it added is not stored: it runs again, and is not charged for that.
            self._conclude(claim, "interrupted", amount=microseconds(self.settings.failure_ttl))
        if self.crew.running or not self.exchange.idle or self.exchange.armed:
            return
        if self.outcomes:
            # Nobody may have taken over, if the server itself was away: then these are handed back, uncharged.
            self.exchange.send([self._settle()])
        elif self.upkeep.gone:
            self.upkeep.victims.append((self.owner, True))
            self.owner = ""

    def _drain(self, *, now: bool) -> None:
        if self.state == "working":
            name, ran, left = self.owner or self.place, self._finished, self.crew.running
            log.info("worker %s stops claiming: jobs that have run: %d; that still run: %d", name, ran, left)
            self.state = "draining"
            self.crew.working = False
            began = time.monotonic()
            self._stop_at = began + (0.0 if now else self.settings.shutdown_timeout)
            self.exchange.disarm()
            self.crew.recall_all()
            if not now:
                self._interrupt_at = self._stop_at - min(
                    self.settings.kill_timeout, self.settings.shutdown_timeout / CLEAN_UP
                )
                self.crew.shut_down(began)
            self._hand_back_lines()
            for claim in self.inputs.take_all():
                self._conclude(claim, "released")
        elif now:
            self._stop_at = time.monotonic()

    def _leave_when_done(self, now: float) -> None:
        self.crew.dismiss_idle()
        if self.crew.running or self.growth or self.inputs:
            if now >= self._interrupt_at:
                self._interrupt_at = float("inf")
                self.crew.interrupt(now)
            if now >= self._stop_at:
                log.warning("the shutdown timeout is over: %d jobs are stopped and handed back", self.crew.running)
                self.crew.kill_all()
                self._stop_at = self._interrupt_at = float("inf")
            return
        self._leave_at = min(self._leave_at, now + FAREWELL)
        if not self.owner or now >= self._leave_at:
            self.state = "left"
        elif self.exchange.idle and not (self.exchange.armed or self.outcomes or self.crew.notes):
            self.exchange.send(
                [(consume.retire(self.keys, self.owner, microseconds(self.settings.failure_ttl)), self._retired)]
            )

    def _retired(self, reply: bool) -> None:
        if not reply and not self._refused_once:
            # Others than we know of: look which, and hand them back.
            self._refused_once = True
            self.exchange.ahead([self.reconciler.look()])
            return
        if not reply:
            log.warning("%s still holds jobs; they come back when its lease is over", self.owner)
        log.info("worker %s leaves: jobs that have run: %d", self.owner, self._finished)
        self.state = "left"
