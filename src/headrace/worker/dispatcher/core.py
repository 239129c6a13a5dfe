"""The core of a dispatcher: events in, actions out (dispatcher_events.py). It decides what a worker does with its jobs.

Its duties, each with its own module:

1. claim batches (demand.py, admission.py) and hand them out (assignment.py, local_queues.py, runner_places.py);
2. gather ends and settle them in batches; one round trip settles and claims (outcome_batch.py);
3. look after the runners, their limits and cancellations (runner_pool.py, time_limits.py);
4. renew the lease, promote, reclaim, sweep, unpark (maintenance.py), travelling with the same round trips;
5. stop its runners before its lease ends when it cannot renew it (self-fencing);
6. agree with the store on what it holds, after each connection and when their counts differ (reconcile.py, starts.py);
7. on shutdown finish or hand back everything, then leave.

It has no socket, clock, dice or process: time, random numbers and what only the system knows are given to it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from headrace.errors import HeadraceError, OptionsError
from headrace.model.ids import is_ordered
from headrace.model.job import Claim, JobError, error_json
from headrace.model.options import KINDS
from headrace.protocol import consume, operations
from headrace.protocol.script import Call, unread
from headrace.settings import microseconds
from headrace.tasks.task import Plan, budgets
from headrace.worker.dispatcher.admission import Wish
from headrace.worker.dispatcher.demand import Demand
from headrace.worker.dispatcher.dispatcher_events import (
    CALLED,
    HURRY,
    Action,
    Actions,
    Ask,
    Connected,
    Disconnected,
    End,
    Event,
    FindPauses,
    Heard,
    Mail,
    Orphaned,
    Paused,
    Ready,
    Replied,
    RunnerClosed,
    RunnerDied,
    RunnerUp,
    Send,
    SendFirst,
    Sleep,
    Step,
    Subscribe,
    TakenBack,
    Told,
    WakeUp,
    Woken,
)
from headrace.worker.dispatcher.duties.maintenance import Upkeep
from headrace.worker.dispatcher.duties.reconcile import Reconciler
from headrace.worker.dispatcher.duties.workflow_growth import Growth
from headrace.worker.dispatcher.duties.workflow_inputs import Inputs, too_large
from headrace.worker.dispatcher.outcome_batch import SETTLE_MOST, OutcomeBatch, Outcomes
from headrace.worker.dispatcher.runners.assignment import SHARED
from headrace.worker.dispatcher.runners.local_queues import MOST as MOST_WAITING
from headrace.worker.dispatcher.runners.local_queues import Lines
from headrace.worker.dispatcher.runners.runner_handle import Start
from headrace.worker.dispatcher.runners.runner_places import Waiting
from headrace.worker.dispatcher.runners.runner_pool import Crew, Returned
from headrace.worker.dispatcher.runners.status import status
from headrace.worker.dispatcher.site import Site
from headrace.worker.dispatcher.timers import NEVER, Timers
from headrace.worker.messages import Drain, Owner, Resize, Size
from headrace.worker.outcomes import before_start

CLAIM_MOST = 300
# While every runner still has work ahead, ends gather for this long (seconds), so that a trip carries many.
GATHER = 0.001
NOTES_EVERY = 0.25
# Renewals in a row that count other jobs as ours than we do, before we look which: a claim may be under way in one.
DOUBTS = 2
# A worker that cannot reach the store at shutdown leaves this long (seconds) after its runners ended.
FAREWELL = 10.0
# Of the shutdown timeout, jobs that still run have this part (one in so many) to clean up after they were interrupted,
# but no more than after a soft limit.
CLEAN_UP = 5

_UNKNOWN = JobError(type="Lost", message="the store and its worker have both forgotten how this start ended")


class Core:
    """One incarnation after another of one worker's claiming side.

    Attributes:
        state: ``working``, ``draining`` (no claims; what runs may finish) or ``left``.
        owner: the current incarnation's name; empty before it is registered.
    """

    def __init__(self, site: Site) -> None:
        settings, options = site.settings, site.options
        self.site = site
        self.settings = settings
        self.options = options
        self.keys = site.keys
        self.tasks = site.tasks
        self.state: Literal["working", "draining", "left"] = "working"
        self.owner = ""
        self.kinds = tuple(sorted({task.kind for task in site.tasks.values()})) or ("process",)
        self.timers = Timers()
        self.actions = Actions()
        self.crew = Crew(
            settings, options, site.place, self.actions, self.timers, site.dice.random, site.tally, site.learned
        )
        self.lines = Lines(self.crew.handout)
        self.ends = OutcomeBatch(settings, self.actions, site.tally)
        self.upkeep = Upkeep(self.keys, settings, site.tasks, options.queues.names, site.schedules, self.actions.log)
        self.inputs = Inputs(self.keys)
        self.growth = Growth(self.keys, self._conclude)
        self.demand = Demand(self.crew, {task.name: task.kind for task in site.tasks.values()}, self.timers)
        self.reconciler = Reconciler(self.keys, self._send_first, self._settled_again, self._hand_back, self._cancel)
        crew = self.crew
        self._heed: dict[type, Callable[[Any], None]] = {
            Heard: lambda event: self._ended(crew.heard(event, self._now)),
            TakenBack: lambda event: self._returned(crew.taken_back(event, self._now)),
            RunnerUp: lambda event: crew.up(event, self._now),
            RunnerClosed: lambda event: crew.closed(event.runner, garbled=event.garbled),
            RunnerDied: lambda event: self._returned(crew.died(event, self._now)),
            Told: lambda event: self._told(event.message),
            Orphaned: lambda _: self._orphaned(),
            Replied: lambda event: event.read(event.reply),
            Woken: self._woke,
            Ready: lambda _: self._become_ready(),
            Disconnected: lambda _: self._lost(),
            Connected: lambda _: self._connected(),
            Mail: lambda event: self._mailed(event.text),
            Paused: self._pause,
        }
        self._now = 0.0
        # Whether steps can be sent; whether some were sent first since that was told; whether a sleep is under way.
        self._ready = self._firsts = self._armed = False
        # Whether the sleep is being ended.
        self._waking = False
        # A claim of a sleep that is not noted, since its job goes out first: what it took, the reply, what was wanted,
        # and its number.
        self._unnoted: tuple[consume.Claimed, Any, Wish, int] | None = None
        # Whether a queue ended the last sleep; whether this turn heard of the end of one.
        self._woken = self._awoken = False
        # Claims that were answered, until the next request is on its way.
        self._arrivals: deque[tuple[Call[consume.Claimed], Any, int]] = deque()
        self._paused = frozenset[str]()
        self._request = 0
        self._fenced = False
        # Whether the store had still counted jobs as ours when we were about to leave.
        self._refused_once = False
        # Since when there is nothing to run.
        self._idle_since = NEVER
        # What the last renewal said of the runners; whether there are others than were said.
        self._said, self._resized = "", False
        # The job that somebody asks for, which the next renewal shows.
        self._shown = ""
        # What the server's clock is ahead of our monotonic one, microseconds.
        self._ahead_of_us = 0.0

    def start(self, predecessor: str, now: float) -> Sequence[Action]:
        """Begin to work.

        Args:
            predecessor: the incarnation that this one takes over from, or empty.
        """
        self._now = now
        if predecessor:
            self.upkeep.victims.append((predecessor, True))
        for kind in self.kinds:
            self.crew.resize(kind, self.options.runners(kind))
        return self.on((), now)

    def on(self, events: Sequence[Event], now: float) -> Sequence[Action]:
        """What to do about events, and about what is due now. To be called again at once while it is :attr:`hasty`.

        Args:
            events: in their order.
            now: monotonic seconds; never less than before.
        """
        self._now, self._awoken = now, False
        if self._unnoted:
            self._note_claim()
        if self._arrivals:
            self._hand_out_arrivals()
        for event in events:
            self._heed[type(event)](event)
            if self._unnoted and len(events) > 1:
                self._note_claim()
        if self.state == "left":
            self.crew.dismiss_idle()
        elif not self._awoken:
            # Else an idle runner gets its job first: deciding takes as long as handing out.
            self._decide(now)
        self._firsts = False
        return self.actions.take()

    @property
    def hasty(self) -> bool:
        """Whether there is more to do as soon as the actions are performed: a request or a job was to go out first."""
        return bool(self._arrivals) or self._awoken

    @property
    def next(self) -> float:
        """When :meth:`on` must be called although nothing happens (monotonic seconds)."""
        now, upkeep = self._now, self.upkeep.next
        return min(self.timers.next(now), self.crew.limits.next, upkeep if upkeep > now else NEVER)

    def _woke(self, event: Woken) -> None:
        self._armed, self._woken = False, event.by_queue
        event.read(event.reply)
        self._awoken = True

    def _lost(self) -> None:
        self._ready = self._armed = False

    def _become_ready(self) -> None:
        self._ready = not self._firsts

    def _pause(self, event: Paused) -> None:
        """Other queues are paused than before: sleep on those that are not."""
        self._paused = event.names
        self._wake_up()

    def _decide(self, now: float) -> None:
        crew, upkeep = self.crew, self.upkeep
        crew.enforce(now)
        while upkeep.cancels:
            self._cancel(upkeep.cancels.popleft())
        crew.recall_stalled(now)
        crew.respawn(now)
        if crew.handout.changed and not self._fenced:
            crew.give(self.lines.serve(now, self._in_time), now)
        if self.state == "draining":
            self._leave_when_done(now)
        elif self.options.burst or self.options.max_jobs or self.options.max_idle:
            self._check_quota(now)
        fence_at = self._fence_at if self.owner else NEVER
        self.timers.set("fence", fence_at)
        if now >= fence_at:
            self._fence()
        else:
            self._fenced = False
        if self._ready and (steps := self._steps(now) if self.owner else self._register(now)):
            self._send(steps)
        if self._armed:
            if self._claimable(now) is not None:
                # What it sleeps for is less than what it can take by now.
                self._wake_up()
        elif self._ready and not self.options.burst:
            self._sleep(now)

    # -- what goes to the store -------------------------------------------------------------------------------------

    def _send(self, steps: list[Step]) -> None:
        self._ready = False
        self.actions.add(Send(steps))

    def _send_first(self, steps: list[Step]) -> None:
        self._ready, self._firsts = False, True
        self.actions.add(SendFirst(steps))

    def _wake_up(self) -> None:
        if self._armed and not self._waking:
            self._waking = True
            self._ready = False
            self.actions.add(WakeUp())

    def _sleep(self, now: float) -> None:
        """Sleep on the queues, if there is room and nothing to claim."""
        wish = self._wish(now)
        if wish is None or wish.now:
            return
        # Each job that comes to a paused queue would wake us, in vain. What is claimed, the server decides.
        names = self.demand.awaited(self.options.queues.names, self._paused)
        if names:
            self._armed, self._waking = True, False
            call, number = self._claim(wish, self._order())
            claim: Step = (unread(call), lambda reply: self._claimed_awake(call, reply, wish, number))
            self.actions.add(Sleep([self.keys.wake(name) for name in names], claim))

    def _register(self, now: float) -> list[Step]:
        if self.state != "working":
            return []
        owner = f"{self.site.place}:{self.site.dice.getrandbits(32):08x}"
        facts: list[str | int] = ["place", self.site.place, "queues", ",".join(self.options.queues.names)]
        facts += ["dispatcher", self.site.pid]
        facts += ["anchor", self.site.anchor] if self.site.anchor else []
        facts += [*self._sizes(), *budgets(self.tasks, self.settings.max_crashes)]
        tasks = {name: task.kind for name, task in self.tasks.items()}
        lease, limits = microseconds(self.settings.lease), self.site.limits
        call = consume.register(self.keys, owner, lease, facts, tasks=tasks, limits=limits)
        return [(call, lambda spared: self._registered(owner, now, spared))]

    def _registered(self, owner: str, sent: float, spared: int) -> None:
        self.owner, self._fenced, self._said = owner, False, ""
        self.demand.begin()
        self.growth.owner = owner
        self.reconciler.begin(owner)
        self.upkeep.begin(owner, sent, spared / 1e6)
        self.crew.advice.renew()
        self.actions.add(Ask(Owner(owner)))
        self.actions.add(Subscribe(self.keys.mail(owner)))
        self.actions.log(logging.INFO, "worker %s serves %s", owner, ", ".join(self.options.queues.names))

    def _steps(self, now: float) -> list[Step]:
        """Everything that is due, for one round trip: notes before ends, ends before a claim."""
        steps: list[Step] = []
        wish = None if self._armed else self._claimable(now)
        if self.ends and (wish or self._gathered(now)):
            steps += [*self._notes(), self._settle()]
        elif self.crew.notes and self._noted(now):
            steps += self._notes()
        if now >= self.upkeep.next:
            steps += self.upkeep.steps(now, self._news, self._expected)
            if lines := self.crew.advice.learned():
                steps.append((operations.learn(self.keys, lines), lambda _: None))
        if self.upkeep.doubts >= DOUBTS:
            # Behind the settle and before the claim, so that the store has seen all that we know.
            self.upkeep.doubts = 0
            steps.append(self.reconciler.look())
        steps += [*self.growth.steps(), *(self._reading(step) for step in self.inputs.steps())]
        if wish is not None:
            steps += self._unparking(now, wish)
            call, number = self._claim(wish, [*self._private(), *self._order()])
            steps.append((unread(call), lambda reply: self._arrived(call, reply, wish, number)))
        return steps

    def _gathered(self, now: float) -> bool:
        """Whether ends have gathered for long enough; they may while every runner has work ahead."""
        until = self.ends.since + GATHER
        if now >= until or self.ends.urgent or not self.crew.handout.least_held:
            return True
        self.timers.set("gather", until)
        return False

    def _noted(self, now: float) -> bool:
        """Whether what running jobs say of themselves is to be stored now."""
        if self.timers.at("notes") == NEVER:
            self.timers.set("notes", now + NOTES_EVERY)
        return self.timers.due("notes", now)

    def _unparking(self, now: float, wish: Wish) -> list[Step]:
        """What others parked since they do not know it, as far as there is room: the claim behind it takes it."""
        rooms = self._rooms(now, 0) if self.upkeep.parked else {}
        kinds = {task: self.tasks[task].kind for task in sorted(self.upkeep.parked)}
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

    def _claim(self, wish: Wish, names: list[str]) -> tuple[Call[consume.Claimed], int]:
        self._request += 1
        number, passing = self._request, self.demand.passing(wish)
        call = consume.claim(self.keys, self.owner, number, wish.limit, names, passing=passing, cursors=wish.cursors)
        return call, number

    def _private(self) -> list[str]:
        """The line of what was broadcast to this worker, while there may be something in it."""
        if not self.demand.called:
            return []
        self.demand.ask(self._request + 1)
        return [f"@{self.owner}"]

    def _arrived(self, call: Call[consume.Claimed], reply: Any, wish: Wish, number: int) -> None:
        """A claim was answered; its jobs are read when the next request is on its way."""
        self._arrivals.append((call, reply, number))
        self.demand.answered(wish, consume.summary(reply), self._now, woken=False)

    def _claimed_awake(self, call: Call[consume.Claimed], reply: Any, wish: Wish, number: int) -> None:
        """The claim of a sleep was answered. Most bring one plain job, and a runner waits for it: that goes first."""
        claimed = call.parse(reply)
        self._unnoted = claimed, reply, wish, number
        if len(claimed.jobs) == 1 and not _special(claimed.jobs[0]):
            self._place(claimed.jobs)
        else:
            self._note_claim()
            self._start(claimed)

    def _note_claim(self) -> None:
        """Learn what the claim of a sleep tells, before anything else is decided."""
        if self._unnoted is None:
            return
        claimed, reply, wish, number = self._unnoted
        self._unnoted = None
        summary = consume.summary(reply)
        self.demand.answered(wish, summary, self._now, woken=self._woken)
        if claimed.alive:
            self._took(claimed, number)
        else:
            self.upkeep.gone = True
        # A token may be left of a job that is claimed already. Only a paused queue goes on to wake in vain.
        if self._woken and not summary.brought and summary.halted:
            self.actions.add(FindPauses())

    def _settle(self) -> Step:
        self._request += 1
        number, batch = self._request, self.ends.take()
        again = [outcome.amount for outcome, _ in batch if outcome.kind in ("retry", "snoozed")]
        call = self.ends.settle(self.keys, self.owner, number, batch)
        mine = self.reconciler.starts
        mine.ended(batch, call, number, self._now)

        def settled(reply: consume.Settled) -> None:
            mine.settled = number
            self._settled(reply, batch, min(again, default=None))

        return call, settled

    def _settled(self, reply: consume.Settled, batch: Outcomes, again: int | None) -> None:
        now = self._now
        if again is not None:
            # No claim need follow that would tell: without this a retry waits for the next renewal.
            self.upkeep.expect(now + again / 1e6)
        if not reply.repeated:
            self._learn(batch, reply.stale)
        if reply.stale:
            text = "refused, since a newer start owns it: %s"
            self.actions.log(logging.WARNING, text, ", ".join(reply.stale[:10]))
        self.ends.since = now
        if self.options.burst:
            # A worker that leaves when the queues are empty does not sleep on them: it asks with each trip.
            self.demand.may_wait()
        self.upkeep.learn_kept(reply.kept, reply.bytes, now)
        self.upkeep.learn_chores(reply.chores)

    def _learn(self, batch: Outcomes, stale: list[str]) -> None:
        """What nodes of workflows returned is known here from now on."""
        refused = set(stale)
        for outcome, claim in batch:
            if claim.facts and outcome.kind == "succeeded" and claim.id not in refused:
                self.inputs.learn(claim, outcome.data)
        if self.inputs:
            self._feed()

    def _notes(self) -> list[Step]:
        notes = self.crew.notes
        if not notes:
            return []
        self.timers.clear("notes")
        batch = [notes.pop(token) for token in list(notes)[:SETTLE_MOST]]
        self._request += 1
        return [(consume.note(self.keys, self.owner, batch, request=self._request), lambda _: None)]

    def _claimable(self, now: float) -> Wish | None:
        """The claim that is to be made at once, if any."""
        known = self.demand.known
        wish = self._wish(now) if known.waiting or known.beyond or self.upkeep.parked or self._asks_anyway else None
        return wish if wish is not None and wish.now else None

    @property
    def _asks_anyway(self) -> bool:
        """Whether there may be jobs of which no claim told: a broadcast, or nodes that are tended in the same trip."""
        return self.demand.called or (self.upkeep.tends and not self._armed)

    def _wish(self, now: float) -> Wish | None:
        """What is wanted of the queues now."""
        if not self._takes:
            return None
        coming = sum(consume.brought(reply) for _, reply, _ in self._arrivals) + len(self.inputs)
        most = CLAIM_MOST
        if self.options.max_jobs:
            here = self.ends.finished + self.crew.running + self.lines.waiting + coming
            most = min(most, self.options.max_jobs - here)
        parked = [self.tasks[task].kind for task in self.upkeep.parked]
        return self.demand.wish(now, most, coming, parked, ask=self._asks_anyway)

    @property
    def _takes(self) -> bool:
        """Whether it may claim at all."""
        return self.state == "working" and not self._fenced and bool(self.owner) and self.lines.waiting < MOST_WAITING

    def _rooms(self, now: float, coming: int) -> dict[str, int]:
        return self.demand.rooms(now, coming) if self._takes else {}

    def _order(self) -> list[str]:
        queues = self.options.queues
        return list(queues.arrange([self.site.dice.random() for _ in queues.names] if queues.weights else []))

    # -- jobs -------------------------------------------------------------------------------------------------------

    def _hand_out_arrivals(self) -> None:
        while self._arrivals:
            call, reply, number = self._arrivals.popleft()
            self._claimed(call.parse(reply), number)

    def _claimed(self, reply: consume.Claimed, number: int) -> None:
        if not reply.alive:
            self.upkeep.gone = True
            return
        self._took(reply, number)
        idle = self.options.burst and not self._busy and not self.upkeep.owes(self._now)
        self._start(reply)
        # Ends that are on their way since that claim may have made the next nodes of their workflows ready.
        if idle and not reply.jobs and not self.demand.known.waiting and number == self._request:
            self._drain(now=False)

    def _took(self, reply: consume.Claimed, number: int) -> None:
        """Jobs are leased to us since this claim, and these are facts of the queues."""
        now = self._now
        self.reconciler.starts.took(reply.jobs, number)
        self._ahead_of_us = reply.now - now * 1e6
        self.upkeep.learn_due(now, reply.now, reply.due)
        for id in reply.lost:
            text = "job %s was ready, but its record is gone or alien; it left the queue"
            self.actions.log(logging.ERROR, text, id)
        for alien in reply.aliens:
            self._quarantine(alien.id, alien.token)
        if number == self.demand.asking:
            self.demand.told(some=any(claim.queue[0] == "@" for claim in reply.jobs))

    def _start(self, reply: consume.Claimed) -> None:
        """Hand out what may start now."""
        if any(map(_special, reply.jobs)):
            self._place([claim for claim in reply.jobs if self._startable(claim, reply.now)])
            # The outputs that they wait for may be known from the batch before.
            self._feed()
        else:
            self._place(reply.jobs)

    def _quarantine(self, id: str, token: int) -> None:
        text = "job %s: its id, its priority or its record cannot be read: quarantined"
        self.actions.log(logging.ERROR, text, ascii(id))
        error = JobError(type="Corrupt", message="its id, its priority or its record cannot be read")
        self._end_unread(id, token, "corrupt", error)

    def _end_unread(self, id: str, token: int, kind: str, error: JobError) -> None:
        self.reconciler.starts.held[token] = id
        self.ends.add_unread(id, token, kind, error)

    def _startable(self, claim: Claim, now: int) -> bool:
        """Whether the job may start at all; one that may not ends here."""
        if not self._may_start(claim, now):
            return False
        if claim.parents:
            self.inputs.add(claim)
        return not claim.parents

    def _in_time(self, waiting: Waiting) -> bool:
        """Whether a job that waited here may still start; one whose time is over ends."""
        return self._may_start(waiting[0], round(self._ahead_of_us + self._now * 1e6))

    def _may_start(self, claim: Claim, now: int) -> bool:
        ended = before_start(claim, now, microseconds(self.settings.failure_ttl))
        if ended is not None:
            if ended[0] == "corrupt":
                self.actions.log(logging.ERROR, "job %s: its record names no task", claim.id)
            self._conclude(End(claim, *ended))
        return ended is None

    def _feed(self) -> None:
        """Hand out the nodes whose inputs are complete."""
        fed: list[Claim] = []
        for inputs, claims in self.inputs.ready():
            if not (text := too_large(inputs)):
                fed += [msgspec.structs.replace(claim, inputs=inputs) for claim in claims]
                continue
            for claim in claims:
                self._end(claim, "failed", JobError(type="PayloadTooLarge", message=text, attempt=claim.attempt))
        self._place(fed)

    @property
    def _busy(self) -> bool:
        """Whether jobs run or are about to, or ends are to be settled."""
        return bool(self.crew.running or self.lines.waiting or self.ends or self.inputs or self.growth)

    def _check_quota(self, now: float) -> None:
        """A worker with an end in sight: its last jobs are done, or its queues look empty: ask once more."""
        # Who has lost its server does not know whether there is something to run.
        if self._busy or self._arrivals or not self.owner:
            self._idle_since = NEVER
            return
        # Nor does one that has not asked yet, since no runner is there to take it.
        self._idle_since = NEVER if self.demand.known.waiting else min(self._idle_since, now)
        self.timers.set("idle", self._idle_since + self.options.max_idle)
        if self.options.max_jobs and self.ends.finished >= self.options.max_jobs:
            self._drain(now=False)
        elif self.options.max_idle and self._ready and self.timers.due("idle", now):
            self.actions.log(logging.INFO, "there was nothing to run for %g s", self.options.max_idle)
            self._drain(now=False)
        elif self.options.burst and self._ready and not self.upkeep.owes(now):
            self.demand.may_wait()

    def _place(self, claims: list[Claim]) -> None:
        """Hand claims out; what fits nowhere goes back to the server, where another worker may take it."""
        now, starts = self._now, list[Start]()
        handout, working = self.crew.handout, self.state == "working" and not self._fenced
        # Plans of jobs without options of their own, by task: every job passes here.
        plans: dict[str, tuple[str, Plan]] = {}
        for claim in claims:
            found = None if claim.options else plans.get(claim.task)
            if found is None:
                found = self._plan(claim)
                if found is None:
                    continue
                if not claim.options:
                    plans[claim.task] = found
            kind, plan = found
            seat = None
            if working:
                strategy = plan.strategy or (self._strategy(claim) if claim.key else self.options.strategy)
                if strategy == "available" and claim.queue[0] == "@":
                    # It cannot go back to the server, where nobody else would run it.
                    strategy = "least_loaded"
                suspect = claim.crashes > 0
                if suspect and kind in SHARED:
                    seat = self.crew.isolated(kind)
                elif strategy == "available" or (strategy == "hash" and not claim.key):
                    seat = handout.choose(kind, claim.task, now, suspect=suspect)
                elif self.lines.add((claim, plan), kind, strategy):
                    # At once: a job of any place that comes behind it must find the room that is left.
                    starts += self.lines.serve(now, self._in_time)
                    continue
            if seat is None:
                self._note_claim()
                self._end(claim, "released")
                if working:
                    self.demand.handed_back(kind)
                continue
            start = Start(claim, plan, seat)
            handout.assign(seat, start, now)
            starts.append(start)
        self.crew.give(starts, now)

    def _strategy(self, claim: Claim) -> str:
        """Of a job with a key, whose task does not say. Of an order no other one runs, so that any runner will do."""
        return self.options.strategy if is_ordered(claim.id) else "hash"

    def _plan(self, claim: Claim) -> tuple[str, Plan] | None:
        """What kind of runner a job needs, and how to run it; None for one that cannot run here, which ends."""
        task = self.tasks.get(claim.task)
        if task is None:
            text = "job %s wants the unknown task %s: parked until a worker knows it"
            self.actions.log(logging.WARNING, text, claim.id, claim.task)
            self._end(claim, "parked")
            return None
        try:
            return task.kind, task.plan(claim.options)
        except (HeadraceError, msgspec.MsgspecError) as error:
            self._end(claim, "corrupt", JobError(type="Corrupt", message=str(error), attempt=claim.attempt))
            return None

    def _returned(self, returned: Returned) -> None:
        """Work came back from a runner: it goes to another one, or waits where its strategy wants it."""
        self._ended(returned.ends)
        bound = [start for start in returned.back if start.bound] if self.state == "working" else []
        if bound:
            self.lines.put_back(bound)
        self._place([start.claim for start in returned.back if not (bound and start.bound)])

    def _hand_back_waiting(self) -> None:
        """What waits for a place or for its inputs goes back to the server, where another worker may take it."""
        for claim in [*(claim for claim, _ in self.lines.take_all()), *self.inputs.take_all()]:
            self._end(claim, "released")

    def _end(self, claim: Claim, kind: str, error: JobError | None = None) -> None:
        """A start ends that no runner was given."""
        keep = microseconds(self.settings.failure_ttl) if error else 0
        self._conclude(End(claim, kind, error_json(error) if error else b"", keep))

    def _ended(self, ends: list[End]) -> None:
        lines, add, now = self.lines, self.ends.add, self._now
        for end in ends:
            if lines.joined:
                lines.ended(end.claim.token)
            if end.kind == "growing":
                self.growth.begin(end)
            else:
                add(end, now)

    def _conclude(self, end: End) -> None:
        self._ended([end])

    def _cancel(self, id: str) -> None:
        waiting = self.lines.cancel(id) if self.lines.waiting else None
        if waiting is None:
            self.crew.cancel(id, self._now)
        else:
            error = error_json(JobError(type="Cancelled", message="cancelled before it started"))
            self._conclude(End(waiting[0], "cancelled", error, waiting[1].failure_ttl))

    # -- the supervisor, and others ---------------------------------------------------------------------------------

    def _told(self, message: Drain | Resize | Size) -> None:
        match message:
            case Resize():
                main = next(kind for kind in KINDS if kind in self.kinds)
                self._scale(main, self.options.at_once(main) + message.by)
            case Size():
                self._resize(message.kind, message.size)
            case Drain():
                self._drain(now=message.now)

    def _mailed(self, text: str) -> None:
        """What others wrote: ``show:JOB``, a question; ``parked:TASK``, news; ``scale:KIND:SIZE``; or a job to cancel.

        A question is answered by a renewal out of turn, whose facts show that job.
        """
        verb, _, rest = text.partition(":")
        kind, _, size = rest.partition(":")
        if text == CALLED:
            self.demand.call()
        elif text == HURRY:
            self.upkeep.hurry()
        elif verb == "show":
            self._shown = rest
            self.upkeep.hurry()
        elif verb == "parked" and rest in self.tasks:
            self.upkeep.parked.add(rest)
        elif verb != "scale":
            self.upkeep.cancels.append(text)
        elif kind in self.kinds and size.isdecimal():
            self._scale(kind, int(size))
        else:
            self.actions.log(logging.WARNING, "cannot do what was asked of this worker: %.100r", text)

    def _scale(self, kind: str, size: int) -> None:
        """Somebody wishes so many jobs of a kind at once: those that come after us keep to it."""
        try:
            self.options.resized(kind, size)
        except OptionsError as error:
            self.actions.log(logging.WARNING, "not resized: %s", error)
            return
        self.actions.add(Ask(Size(kind, size)))
        self._resize(kind, size)

    def _resize(self, kind: str, size: int) -> None:
        """Run so many jobs of a kind at once from now on; what is removed finishes what it runs."""
        if self.state != "working" or size == self.options.at_once(kind):
            return
        text = "%s: %d at once, %d before"
        self.actions.log(logging.INFO, text, kind, size, self.options.at_once(kind))
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
        advice = self.crew.advice
        for line in advice.lines():
            self.actions.log(logging.WARNING, "%s", line)
        facts: list[str | int] = ["startup_profile", advice.summary()] if advice.changed else []
        facts += self._sizes() if self._resized else []
        self._resized = False
        crew = status(self.crew.handout.seats.values(), self._ahead_of_us, self.site.look, self._shown)
        if crew != self._said:
            self._said = crew
            facts += ["crew", crew]
        return facts

    def _orphaned(self) -> None:
        """The supervisor died, and nobody restarts us: its runners are stopped, what they ran is settled, we leave."""
        self.actions.log(logging.ERROR, "the supervisor died: stopping")
        self.crew.working = False
        self.state = "draining"
        self.timers.set("stop", self._now)

    # -- what the store forgot --------------------------------------------------------------------------------------

    def _connected(self) -> None:
        """Before anything that was under way is sent again: see whether the store remembers all."""
        if self.owner:
            self.growth.restart()
            self._send_first([self.reconciler.look()])

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
            self.actions.log(logging.ERROR, "the lease of %s could not be kept: stopping its jobs", self.owner)
            self._fenced = True
            self.crew.kill_busy()
        self._wake_up()
        self._hand_back_waiting()
        for claim in self.growth.drop_all():
            # It ran, but what it added is not stored: it runs again, and is not charged for that.
            self._conclude(End(claim, "interrupted", amount=microseconds(self.settings.failure_ttl)))
        if self.crew.running or not self._ready or self._armed:
            return
        if self.ends:
            # Nobody may have taken over, if the server itself was away: then these are handed back, uncharged.
            self._send([self._settle()])
        elif self.upkeep.gone:
            self.upkeep.victims.append((self.owner, True))
            self.owner = ""

    def _drain(self, *, now: bool) -> None:
        if self.state == "working":
            name, ran, left = self.owner or self.site.place, self.ends.finished, self.crew.running
            text = "worker %s stops claiming: jobs that have run: %d; that still run: %d"
            self.actions.log(logging.INFO, text, name, ran, left)
            self.state = "draining"
            self.crew.working = False
            stop = self._now + (0.0 if now else self.settings.shutdown_timeout)
            self.timers.set("stop", stop)
            self._wake_up()
            self.crew.recall_all()
            if not now:
                clean_up = min(self.settings.kill_timeout, self.settings.shutdown_timeout / CLEAN_UP)
                self.timers.set("interrupt", stop - clean_up)
                self.crew.shut_down(self._now)
            self._hand_back_waiting()
        elif now:
            self.timers.set("stop", self._now)

    def _leave_when_done(self, now: float) -> None:
        self.crew.dismiss_idle()
        timers = self.timers
        if self.crew.running or self.growth or self.inputs:
            if timers.due("interrupt", now):
                timers.clear("interrupt")
                self.crew.interrupt(now)
            if timers.due("stop", now):
                text = "the shutdown timeout is over: %d jobs are stopped and handed back"
                self.actions.log(logging.WARNING, text, self.crew.running)
                self.crew.kill_all()
                timers.clear("stop")
                timers.clear("interrupt")
            return
        timers.set("leave", min(timers.at("leave"), now + FAREWELL))
        if not self.owner or timers.due("leave", now):
            self.state = "left"
        elif self._ready and not (self._armed or self.ends or self.crew.notes):
            keep = microseconds(self.settings.failure_ttl)
            self._send([(consume.retire(self.keys, self.owner, keep), self._retired)])

    def _retired(self, reply: bool) -> None:
        if not reply and not self._refused_once:
            # Others than we know of: look which, and hand them back.
            self._refused_once = True
            self._send_first([self.reconciler.look()])
            return
        if not reply:
            text = "%s still holds jobs; they come back when its lease is over"
            self.actions.log(logging.WARNING, text, self.owner)
        self.actions.log(logging.INFO, "worker %s leaves: jobs that have run: %d", self.owner, self.ends.finished)
        self.state = "left"


def _special(claim: Claim) -> bool:
    """Whether it is checked before it starts: it expires, takes outputs of other nodes, or names no task."""
    return bool(claim.expires or claim.parents or not claim.task)
