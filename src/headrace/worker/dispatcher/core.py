"""The core of a dispatcher: events in, actions out (``dispatcher_events.py``). Decides; does no I/O.

:class:`Core` puts the parts together: which part gets which event, and in which order a turn asks them. Each part has
its own module and knows only those before it:

1. ends go into a batch (``endings.py``), claims become starts on runners (``placement.py``, ``runner_pool.py``);
2. ends are settled in batches, and one round trip settles and claims (``settlement.py``);
3. claims are made while there is room (``claiming.py``, ``claim_demand.py``);
4. the lease is renewed, due jobs are promoted, ... with the same round trips (``maintenance.py``);
5. it answers requests of others, and reports its state (``remote_control.py``).

:class:`Incarnation` is the worker at one shard: it registers, decides what is sent to the store, stops the runners
before the lease ends if that cannot be renewed, and retires. :class:`Core` has the runners, and ends the worker when
its work is done or a stop was asked for. No job is lost by any of these. Nothing here has a socket, a clock, random
numbers or a process: they are given to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from headrace import __version__
from headrace.protocol import consume
from headrace.protocol.keys import Keys
from headrace.settings import microseconds
from headrace.tasks.task import budgets
from headrace.worker.dispatcher.claim_demand import ClaimDemand
from headrace.worker.dispatcher.claiming import Claiming
from headrace.worker.dispatcher.dispatcher_events import (
    Action,
    CallRefused,
    Connected,
    Disconnected,
    Event,
    Heard,
    Mail,
    Orphaned,
    Ready,
    Replied,
    RunnerClosed,
    RunnerDied,
    StackHeard,
    Step,
    Subscribe,
    TakenBack,
    Woken,
)
from headrace.worker.dispatcher.endings import Endings
from headrace.worker.dispatcher.local_queues import LocalQueues
from headrace.worker.dispatcher.maintenance import Maintenance
from headrace.worker.dispatcher.placement import Placement
from headrace.worker.dispatcher.remote_control import RemoteControl, SelfReport, StackRequests, Vitals
from headrace.worker.dispatcher.runner_pool import RunnerPool
from headrace.worker.dispatcher.settlement import Reconciler, Settlement
from headrace.worker.dispatcher.worker_state import ENDS, NEVER, Desk, Starts, Worker
from headrace.worker.dispatcher.workflow_growth import GROWTH
from headrace.worker.health_stamps import fence_at
from headrace.worker.messages import TIME_OVER, Drain, Owner, Resize, Size, Spawned

# A worker that cannot reach the store at shutdown leaves this long (seconds) after its runners ended.
FAREWELL = 10.0
# While refused calls of these scripts wait, the worker has more to say.
LAST = (*ENDS, "retire")
# Of the shutdown timeout, jobs that still run have this part (one in this many) to clean up after they were
# interrupted, but no more than after a soft limit.
CLEAN_UP = 5


# Renewals in a row that count other jobs as ours than we do, before we ask which: a claim may be under way in one.
DOUBTS = 2


class Incarnation:
    """The worker at one shard, under one name after the other.

    Attributes:
        desk, endings, growth, demand, placement, inputs, maintenance, renewal, claiming, stacks, control, vitals: parts
            that the core, the loop and tests ask.
        handlers: what becomes of each event of the store.
        awoken: a sleep ended in this turn; its jobs went out, all else is decided in the next.
        retired: nothing is held any more.
    """

    def __init__(self, worker: Worker, keys: Keys, pool: RunnerPool, local_queues: LocalQueues) -> None:
        assignment, supply, stops = pool.assignment, pool.supply, pool.stops
        self._worker, self._pool, self._assignment, self._supply, self._stops = worker, pool, assignment, supply, stops
        desk = self.desk = Desk(worker, keys)
        self._requests = desk.requests
        report = self._report = SelfReport(worker, desk, assignment, pool.advice)
        maintenance = self.maintenance = Maintenance(worker, desk, report.news, self._held)
        renewal = self.renewal = maintenance.renewal
        self._reclaim, self._limits = maintenance.reclaim, maintenance.limits
        demand = self.demand = ClaimDemand(worker, desk, assignment)
        endings = self.endings = Endings(worker, desk, local_queues)
        self.growth = endings.growth
        placement = self.placement = Placement(
            worker, desk, pool, assignment, supply, stops, local_queues, endings, demand
        )
        inputs = self.inputs = placement.inputs
        self._settlement = Settlement(worker, desk, assignment, pool.notes, endings, demand, inputs, maintenance)
        claiming = self.claiming = Claiming(worker, desk, endings, demand, placement, inputs, maintenance)
        self._reconciler = Reconciler(worker, desk, endings, placement, self._settlement)
        stacks = self.stacks = StackRequests(worker, desk, assignment)
        self.control = RemoteControl(
            worker, supply, local_queues, demand, placement, renewal, maintenance.unparking, report, stacks
        )
        self.vitals = Vitals(worker, desk, assignment, renewal, claiming)
        self.handlers: dict[type, Callable[[Any], None]] = {
            Replied: self._replied,
            CallRefused: self._refused,
            Woken: self._woke,
            Ready: lambda _: self._requests.may_send(),
            Disconnected: lambda _: self._requests.lost(),
            Connected: lambda _: self._connected(),
            Mail: lambda event: self.control.mailed(event.text),
        }
        self.awoken = self.retired = False
        # Whether the store had still counted jobs as ours when it was to be retired.
        self._refused_once = False

    # -- a turn -----------------------------------------------------------------------------------------------------

    def begin_turn(self) -> None:
        """Read what was answered while the request before this turn was on its way."""
        self.awoken = False
        if self.claiming.unnoted:
            self.claiming.note()
        if self.claiming.arrivals:
            self.claiming.hand_out()

    def exchange(self, now: float) -> None:
        """Send what is due, and sleep or end the sleep."""
        worker, requests, claiming = self._worker, self._requests, self.claiming
        self._keep_fence(now)
        if requests.ready and (steps := self._steps(now) if self.desk.owner else self._register(now)):
            requests.send(steps)
        claiming.avoid(self.renewal.paused)
        if requests.armed:
            if claiming.claimable(now) is not None:
                # There is more room now than the armed claim asks for.
                requests.wake_up()
        elif requests.ready and not worker.options.burst and not claiming.waits:
            claiming.sleep(now)

    def _steps(self, now: float) -> list[Step]:
        """Everything that is due, for one round trip: notes before ends, ends before a claim."""
        requests = self._requests
        steps = requests.again(now)
        wanted = None if requests.armed else self.claiming.claimable(now)
        if (self.endings or self._pool.notes) and not requests.waits(*ENDS):
            steps += self._settlement.steps(now, claims=wanted is not None)
        if now >= self.maintenance.next:
            steps += self.maintenance.steps(now)
        if not requests.pauses("holds", now) and self.renewal.take_doubts(DOUBTS):
            # Behind the settle and before the claim, so that the store has seen all that we know.
            steps.append(self._reconciler.check())
        steps += self.stacks.steps(now)
        steps += self.growth.steps()
        steps += self.inputs.steps()
        if wanted is not None:
            steps += self.claiming.steps(now, wanted)
        return steps

    @property
    def next(self) -> float:
        """When it must be asked again although nothing happens (monotonic seconds)."""
        now, due = self._worker.now, self.maintenance.next
        return min(self.desk.timers.next(now), self._requests.next(now), due if due > now else NEVER)

    # -- the store --------------------------------------------------------------------------------------------------

    def _connected(self) -> None:
        """Before anything that was under way is sent again: see whether the store remembers all."""
        if self.desk.owner:
            self.growth.restart()
            self._requests.forget(*GROWTH)
            self._requests.send_first([*self._reconciler.outrun(self.renewal.promise), self._reconciler.check()])
            # Mail that came meanwhile is lost: that a job was cancelled, or a queue resumed.
            self.renewal.renew_soon()

    def _replied(self, event: Replied) -> None:
        self._requests.accepted(event.script)
        event.read(event.reply)

    def _refused(self, event: CallRefused) -> None:
        """All else goes on. Where a sleep's claim was refused, no other sleep begins before one is accepted."""
        if event.asleep:
            self._requests.slept()
        self._requests.refused(event.step, self._worker.now, self._worker.random.random())

    def _woke(self, event: Woken) -> None:
        self._requests.slept()
        self._requests.accepted("claim")
        self.claiming.woken = event.by_queue
        event.read(event.reply)
        self.awoken = True

    # -- its name ---------------------------------------------------------------------------------------------------

    def _register(self, now: float) -> list[Step]:
        worker, keys = self._worker, self.desk.keys
        if worker.phase != "working" or self._requests.pauses("register", now):
            return []
        owner = f"{worker.place}:{worker.random.getrandbits(32):08x}"
        metadata: list[str | int] = ["place", worker.place, "queues", ",".join(worker.options.queues.names)]
        metadata += ["dispatcher", worker.pid]
        if weights := worker.options.queues.weights:
            metadata += ["weights", ",".join(f"{weight:g}" for weight in weights)]
        metadata += ["parent", worker.parent] if worker.parent else []
        metadata += ["version", __version__, *self._report.sizes()]
        metadata += budgets(worker.tasks, worker.settings.max_crashes)
        tasks = {name: task.kind for name, task in worker.tasks.items()}
        call = consume.register(keys, owner, microseconds(worker.settings.lease), metadata, tasks=tasks)
        return [(call, lambda spared: self._registered(owner, now, spared)), self._limits.first(owner, now)]

    def _registered(self, owner: str, sent: float, spared: int) -> None:
        worker, desk = self._worker, self.desk
        desk.owner, desk.fenced, desk.starts = owner, False, Starts()
        self.demand.begin()
        self.growth.owner = owner
        self.maintenance.begin(owner, sent, spared / 1e6)
        self._report.begin()
        worker.actions.add(Owner(owner))
        self._supply.on_registration()
        worker.actions.add(Subscribe(desk.keys.mail(owner)))
        text = "worker %s serves %s"
        worker.actions.log(logging.INFO, text, owner, ", ".join(worker.options.queues.names), code="worker.serves")

    def _held(self) -> int:
        """How many jobs the store should count as ours."""
        return len(self.desk.starts.held) + self.claiming.leased

    def _keep_fence(self, now: float) -> None:
        """Stop what runs before another worker may start it, and hand it back when the store is there again.

        The incarnation goes on if its lease can be renewed then, since no other one has taken over; else a new one
        begins.
        """
        desk, renewal = self.desk, self.renewal
        at = NEVER
        if desk.owner:
            at = 0.0 if renewal.gone else fence_at(renewal.lease_until, self._worker.settings.lease)
        desk.timers.set("fence", at)
        if now >= at:
            self._fence()
        else:
            desk.fenced = False

    def _fence(self) -> None:
        worker, desk, requests, renewal = self._worker, self.desk, self._requests, self.renewal
        if not desk.fenced:
            # The server was not too slow then: the line must send no person to look for a slow network.
            lost = renewal.gone and worker.now < renewal.lease_until
            text = "the server lost the lease of %s: stopping its jobs"
            text = text if lost else "the lease of %s could not be kept: stopping its jobs"
            worker.actions.log(logging.ERROR, text, desk.owner, code="store.lost_data" if lost else "lease.lost")
            desk.fenced = True
            self._stops.kill_busy()
        requests.wake_up()
        self.placement.hand_back_waiting()
        self.endings.interrupt_growth()
        if self._pool.running or not requests.ready or requests.armed or requests.waits(*ENDS):
            return
        if self.endings:
            # No other worker may have taken over, if the server itself was away: then these are handed back.
            requests.send([self._settlement.settle()])
        elif renewal.gone:
            self._reclaim.add(desk.owner, known=False)
            desk.owner = ""
            # Renewals and claims of that incarnation.
            requests.forget()

    def retire(self, why: str, *, at_once: bool) -> None:
        """End it when the store knows all; ``at_once``: also where that does not answer.

        Args:
            why: what ended the worker, if it does not leave in order.
        """
        worker, desk, requests = self._worker, self.desk, self._requests
        # Where its registration is not answered, it may be an incarnation that must be retired.
        registers = not (desk.owner or requests.ready or requests.away)
        if not (desk.owner or registers) or at_once:
            self._leave(holds=desk.starts.untold)
        elif requests.ready and not (requests.armed or self.endings or self._pool.notes or requests.waits(*LAST)):
            keep = microseconds(worker.settings.failure_ttl)
            requests.send([(consume.retire(desk.keys, desk.owner, keep, why), self._on_retirement)])

    def _on_retirement(self, reply: bool) -> None:
        if not reply and not self._refused_once:
            # Others than we know of: ask which, and hand them back.
            self._refused_once = True
            self._requests.send_first([self._reconciler.check()])
            return
        self._leave(holds=not reply)

    def _leave(self, *, holds: bool) -> None:
        """Leave now, and log that where the store knows us; ``holds``: as far as the store knows, jobs run here."""
        actions, owner = self._worker.actions, self.desk.owner
        if holds:
            text = "%s still holds jobs; they come back when its lease is over"
            actions.log(logging.WARNING, text, owner, code="worker.left_jobs")
        if owner:
            text = "worker %s leaves: jobs that have run: %d"
            actions.log(logging.INFO, text, owner, self.endings.finished, code="worker.left")
        self.retired = True


class Core:
    """One worker's claiming side.

    Attributes:
        worker: what all parts know.
        incarnation: the worker at its shard.
        runner_pool, local_queues: its runners, and jobs that wait for one of them.
    """

    def __init__(self, worker: Worker, keys: Keys) -> None:
        self.worker = worker
        pool = self.runner_pool = RunnerPool(worker)
        self._assignment, self._supply, self._stops = pool.assignment, pool.supply, pool.stops
        self._limits = self._stops.limits
        self.local_queues = LocalQueues(self._assignment)
        incarnation = self.incarnation = Incarnation(worker, keys, pool, self.local_queues)
        self._desk, self._requests = incarnation.desk, incarnation.desk.requests
        self._endings, self._demand, self._placement = incarnation.endings, incarnation.demand, incarnation.placement
        self._growth, self._inputs, self._claiming = incarnation.growth, incarnation.inputs, incarnation.claiming
        self._maintenance, self._renewal = incarnation.maintenance, incarnation.renewal
        self._control, self._stacks = incarnation.control, incarnation.stacks
        self._handlers = self._make_handlers() | incarnation.handlers
        # Why what still runs at the end is stopped.
        self._stopped_for = TIME_OVER
        # What ended the worker, if it does not leave in order.
        self._why = ""
        # Since when there is nothing to run.
        self._idle_since = NEVER

    def _make_handlers(self) -> dict[type, Callable[[Any], None]]:
        worker, pool, control, timers = self.worker, self.runner_pool, self._control, self._desk.timers
        endings, returned = self._endings, self._placement.returned
        return {
            Heard: lambda event: endings.ended(pool.on_messages(event, worker.now)),
            TakenBack: lambda event: returned(pool.taken_back(event, worker.now)),
            Spawned: lambda event: self._supply.up(event, worker.now),
            RunnerClosed: lambda event: pool.closed(event.runner, garbled=event.garbled),
            RunnerDied: lambda event: returned(pool.died(event, worker.now, overdue=timers.due("fence", worker.now))),
            StackHeard: self._stacks.on_stacks,
            Drain: lambda event: self._drain(now=event.now),
            Resize: lambda event: control.grow(event.by),
            Size: lambda event: control.resize(event.kind, event.size),
            Orphaned: lambda _: self._orphaned(),
        }

    # -- for the loop -----------------------------------------------------------------------------------------------

    def start(self, predecessors: Sequence[str], now: float) -> Sequence[Action]:
        """Begin to work; ``predecessors``: the incarnations that this one takes over from, whose processes are dead."""
        self.worker.now, reclaim = now, self._maintenance.reclaim
        for predecessor in predecessors:
            reclaim.add(predecessor, known=True)
        for kind in self.worker.kinds:
            self._supply.resize(kind, self.worker.options.runners(kind))
        return self.on((), now)

    def on(self, events: Sequence[Event], now: float) -> Sequence[Action]:
        """What to do about events, and about what is due now. To be called again at once while it is :attr:`hasty`.

        Args:
            events: in their order.
            now: monotonic seconds; never less than before.
        """
        worker, claiming = self.worker, self._claiming
        worker.now = now
        self.incarnation.begin_turn()
        for event in events:
            self._handlers[type(event)](event)
            if claiming.unnoted and len(events) > 1:
                claiming.note()
        if worker.phase == "left":
            self._supply.dismiss_idle()
        elif not self.awoken:
            # Else an idle runner gets its job first.
            self._decide(now)
        self._requests.end_turn()
        return worker.actions.take()

    @property
    def awoken(self) -> bool:
        return self.incarnation.awoken

    @property
    def hasty(self) -> bool:
        """Whether there is more to do as soon as the actions are performed: a request or a job was to go out first."""
        return bool(self._claiming.arrivals) or self.awoken

    @property
    def left(self) -> bool:
        """Whether the worker holds nothing any more and claims no more."""
        return self.worker.phase == "left"

    @property
    def next(self) -> float:
        """When :meth:`on` must be called although nothing happens (monotonic seconds)."""
        return min(self.worker.timers.next(self.worker.now), self._limits.next, self.incarnation.next)

    def _decide(self, now: float) -> None:
        pool, placement, cancels = self.runner_pool, self._placement, self._renewal.cancels
        self._demand.begin_turn(now)
        self._stops.enforce(now)
        while cancels:
            placement.cancel(cancels.popleft())
        if refused := self._endings.take_refused():
            placement.close(refused)
        pool.recall_stalled(now)
        self._supply.respawn(now)
        if self._assignment.changed and not self._desk.fenced:
            placement.serve(now)
        options = self.worker.options
        if self.worker.phase == "working" and (options.burst or options.max_jobs or options.max_idle):
            self._check_quota(now)
        if self.worker.phase == "draining":
            self._leave_when_done(now)
        if not self.left:
            self.incarnation.exchange(now)

    # -- the end ----------------------------------------------------------------------------------------------------

    def _orphaned(self) -> None:
        """The supervisor died, and no other process restarts us: what runs is stopped and settled, then we leave."""
        worker = self.worker
        worker.actions.log(logging.ERROR, "the supervisor died: stopping", code="supervisor.died")
        self._why = self._stopped_for = "its supervisor died"
        self._stops.orphaned = True
        worker.phase = "draining"
        worker.timers.set("stop", worker.now)

    def _drain(self, *, now: bool) -> None:
        """Claim no more, finish what runs within the shutdown timeout, or ``now`` hand it back."""
        worker, settings = self.worker, self.worker.settings
        if now:
            self._stopped_for = "the worker was told to stop at once"
        if worker.phase == "working":
            name, ran = self._desk.owner or worker.place, self._endings.finished
            text = "worker %s stops claiming: jobs that have run: %d; that still run: %d"
            worker.actions.log(logging.INFO, text, name, ran, self.runner_pool.running, code="worker.draining")
            worker.phase = "draining"
            stop = worker.now + (0.0 if now else settings.shutdown_timeout)
            worker.timers.set("stop", stop)
            self._requests.wake_up()
            if self.runner_pool.running:
                # Others learn of it, and why their jobs wait.
                self._renewal.renew_soon()
            self.runner_pool.recall()
            if stop > worker.now:
                clean_up = min(settings.kill_timeout, settings.shutdown_timeout / CLEAN_UP)
                worker.timers.set("interrupt", stop - clean_up)
                self._stops.stop_all("shutdown", worker.now)
            self._placement.hand_back_waiting()
        elif now:
            worker.timers.set("stop", worker.now)

    def _check_quota(self, now: float) -> None:
        worker, options, timers = self.worker, self.worker.options, self.worker.timers
        if self._claiming.found_none:
            self._drain(now=False)
            return
        # A worker that has lost its server does not know whether there is something to run.
        if self._placement.busy or self._claiming.arrivals or not self._desk.owner:
            self._idle_since = NEVER
            return
        # Nor does one that has not asked yet, since no runner is there to take it.
        self._idle_since = NEVER if self._demand.known.waiting else min(self._idle_since, now)
        timers.set("idle", self._idle_since + options.max_idle)
        if options.max_jobs and self._endings.finished >= options.max_jobs:
            self._drain(now=False)
        elif options.max_idle and self._requests.ready and timers.due("idle", now):
            worker.actions.log(logging.INFO, "there was nothing to run for %g s", options.max_idle, code="worker.idle")
            self._drain(now=False)
        elif options.burst and self._requests.ready and not self._maintenance.has_pending(now):
            self._demand.may_wait()

    def _leave_when_done(self, now: float) -> None:
        timers = self.worker.timers
        self._supply.dismiss_idle()
        if self.runner_pool.running or self._growth or self._inputs:
            self._stop_what_runs(now)
            return
        timers.set("leave", min(timers.at("leave"), now + FAREWELL))
        if not self.incarnation.retired:
            self.incarnation.retire(self._why, at_once=timers.due("leave", now))
        if self.incarnation.retired:
            self.worker.phase = "left"

    def _stop_what_runs(self, now: float) -> None:
        worker, timers, running = self.worker, self.worker.timers, self.runner_pool.running
        if timers.due("interrupt", now):
            timers.clear("interrupt")
            self._stops.stop_all("interrupt", now)
        if timers.due("stop", now):
            text = "%s: %d jobs are killed and handed back, and no crash is counted"
            worker.actions.log(logging.WARNING, text, self._stopped_for, running, code="shutdown.timeout")
            self._stops.kill_all(self._stopped_for)
            # A server that is full stores no graft.
            self._endings.interrupt_growth()
            timers.clear("stop")
            timers.clear("interrupt")
