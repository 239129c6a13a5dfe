"""The core of a dispatcher: events in, actions out (``dispatcher_events.py``). Decides; does no I/O.

:class:`Core` puts the parts together: which part gets which event, and in which order a turn asks them. Each part has
its own module and knows only those before it:

1. ends go into a batch (``endings.py``), claims become starts on runners (``placement.py``, ``runner_pool.py``);
2. ends are settled in batches, and one round trip settles and claims (``settlement.py``);
3. claims are made while there is room (``claiming.py``, ``claim_demand.py``);
4. the lease is renewed, due jobs are promoted, ... with the same round trips (``maintenance.py``);
5. runners are stopped before the lease ends if it cannot be renewed, and the worker leaves in order
   (:class:`Departure`);
6. it answers requests of others, and reports its state (``remote_control.py``).

:class:`Departure` ends an incarnation: its lease is lost, its work is done, or a stop was asked for. No job is lost by
any of these. Nothing here has a socket, clock, dice or process: time, random numbers and the system's answers are given
to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from headrace import __version__
from headrace.protocol import consume
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
from headrace.worker.dispatcher.remote_control import RemoteControl, SelfReport, Vitals
from headrace.worker.dispatcher.runner_pool import RunnerPool
from headrace.worker.dispatcher.settlement import Reconciler, Settlement
from headrace.worker.dispatcher.worker_state import ENDS, NEVER, Starts, WorkerState
from headrace.worker.dispatcher.workflow_growth import GROWTH
from headrace.worker.health_stamps import fence_at
from headrace.worker.messages import TIME_OVER, Drain, Owner, Resize, Size, Spawned

# A worker that cannot reach the store at shutdown leaves this long (seconds) after its runners ended.
FAREWELL = 10.0
# While refused calls of these scripts wait, the worker has more to say.
LAST = (*ENDS, "retire")
# Of the shutdown timeout, jobs that still run have this part (one in so many) to clean up after they were interrupted,
# but no more than after a soft limit.
CLEAN_UP = 5


class Departure:
    """Decides when runners are stopped, and when the worker leaves."""

    def __init__(
        self,
        worker: WorkerState,
        placement: Placement,
        maintenance: Maintenance,
        claiming: Claiming,
        settlement: Settlement,
        reconciler: Reconciler,
    ) -> None:
        self._worker, self._requests = worker, worker.requests
        self._pool = placement.pool
        self._endings = placement.endings
        self._demand = placement.demand
        self._placement, self._maintenance = placement, maintenance
        self._claiming = claiming
        self._settlement = settlement
        self._reconciler = reconciler
        # Whether the store had still counted jobs as ours when we were about to leave.
        self._refused_once = False
        # Why what still runs at the end is stopped.
        self._stopped_for = TIME_OVER
        # What ended the worker, if it does not leave in order.
        self._why = ""
        # Since when there is nothing to run.
        self._idle_since = NEVER

    # -- the lease --------------------------------------------------------------------------------------------------

    def keep_fence(self, now: float) -> None:
        """Stop what runs before another worker may start it, and hand it back when the store is there again.

        The incarnation goes on if its lease can be renewed then, since no other one has taken over; else a new one
        begins.
        """
        worker, renewal = self._worker, self._maintenance.renewal
        at = NEVER
        if worker.owner:
            at = 0.0 if renewal.gone else fence_at(renewal.lease_until, worker.settings.lease)
        worker.timers.set("fence", at)
        if now >= at:
            self._fence()
        else:
            worker.fenced = False

    def _fence(self) -> None:
        worker, requests = self._worker, self._requests
        if not worker.fenced:
            renewal = self._maintenance.renewal
            # The server was not too slow then: the line must send no person to look for a slow network.
            lost = renewal.gone and worker.now < renewal.lease_until
            what = "the server lost data, the lease of %s among it" if lost else "the lease of %s could not be kept"
            text = what + ": stopping its jobs"
            worker.actions.log(logging.ERROR, text, worker.owner, code="store.lost_data" if lost else "lease.lost")
            worker.fenced = True
            self._pool.stops.kill_busy()
        requests.wake_up()
        self._placement.hand_back_waiting()
        self._endings.interrupt_growth()
        if self._pool.running or not requests.ready or requests.armed or requests.waits(*ENDS):
            return
        if self._endings:
            # No other worker may have taken over, if the server itself was away: then these are handed back.
            requests.send([self._settlement.settle()])
        elif self._maintenance.renewal.gone:
            self._maintenance.reclaim.add(worker.owner, known=False)
            worker.owner = ""
            # Renewals and claims of that incarnation.
            requests.forget()

    # -- shutdown ---------------------------------------------------------------------------------------------------

    def orphaned(self) -> None:
        """The supervisor died, and no other process restarts us: what runs is stopped and settled, then we leave."""
        worker = self._worker
        worker.actions.log(logging.ERROR, "the supervisor died: stopping", code="supervisor.died")
        self._why = self._stopped_for = "its supervisor died"
        self._pool.stops.orphaned = True
        worker.phase = "draining"
        worker.timers.set("stop", worker.now)

    def drain(self, *, now: bool) -> None:
        """Claim no more, finish what runs within the shutdown timeout, or ``now`` hand it back."""
        worker = self._worker
        if now:
            self._stopped_for = "the worker was told to stop at once"
        if worker.phase == "working":
            name, ran = worker.owner or worker.place, self._endings.finished
            text = "worker %s stops claiming: jobs that have run: %d; that still run: %d"
            worker.actions.log(logging.INFO, text, name, ran, self._pool.running, code="worker.draining")
            worker.phase = "draining"
            settings = worker.settings
            stop = worker.now + (0.0 if now else settings.shutdown_timeout)
            worker.timers.set("stop", stop)
            self._requests.wake_up()
            if self._pool.running:
                # Others learn of it, and why their jobs wait.
                self._maintenance.renewal.renew_soon()
            self._pool.recall()
            if stop > worker.now:
                clean_up = min(settings.kill_timeout, settings.shutdown_timeout / CLEAN_UP)
                worker.timers.set("interrupt", stop - clean_up)
                self._pool.stops.stop_all("shutdown", worker.now)
            self._placement.hand_back_waiting()
        elif now:
            worker.timers.set("stop", worker.now)

    def look(self, now: float) -> None:
        """Leave when all is done; begin to where the worker's end is in sight."""
        options = self._worker.options
        if self._worker.phase == "draining":
            self._leave_when_done(now)
        elif options.burst or options.max_jobs or options.max_idle:
            self._check_quota(now)

    def _check_quota(self, now: float) -> None:
        """A worker with an end in sight: its last jobs are done, or its queues look empty: ask once more."""
        worker, options, timers = self._worker, self._worker.options, self._worker.timers
        if self._claiming.found_none:
            self.drain(now=False)
            return
        # A worker that has lost its server does not know whether there is something to run.
        if self._placement.busy or self._claiming.arrivals or not worker.owner:
            self._idle_since = NEVER
            return
        # Nor does one that has not asked yet, since no runner is there to take it.
        self._idle_since = NEVER if self._demand.known.waiting else min(self._idle_since, now)
        timers.set("idle", self._idle_since + options.max_idle)
        if options.max_jobs and self._endings.finished >= options.max_jobs:
            self.drain(now=False)
        elif options.max_idle and self._requests.ready and timers.due("idle", now):
            worker.actions.log(logging.INFO, "there was nothing to run for %g s", options.max_idle, code="worker.idle")
            self.drain(now=False)
        elif options.burst and self._requests.ready and not self._maintenance.has_pending(now):
            self._demand.may_wait()

    def _leave_when_done(self, now: float) -> None:
        runner_pool, worker, timers, requests = self._pool, self._worker, self._worker.timers, self._requests
        runner_pool.supply.dismiss_idle()
        if runner_pool.running or self._endings.growth or self._placement.inputs:
            self._stop_what_runs(now)
            return
        timers.set("leave", min(timers.at("leave"), now + FAREWELL))
        # Where its registration is not answered, it may be an incarnation that must be retired.
        registers = not (worker.owner or requests.ready or requests.away)
        if not (worker.owner or registers) or timers.due("leave", now):
            self._leave(holds=worker.starts.untold)
        elif requests.ready and not (requests.armed or self._endings or runner_pool.notes or requests.waits(*LAST)):
            keep = microseconds(worker.settings.failure_ttl)
            requests.send([(consume.retire(worker.keys, worker.owner, keep, self._why), self._retired)])

    def _stop_what_runs(self, now: float) -> None:
        runner_pool, worker, timers = self._pool, self._worker, self._worker.timers
        if timers.due("interrupt", now):
            timers.clear("interrupt")
            runner_pool.stops.stop_all("interrupt", now)
        if timers.due("stop", now):
            text = "%s: %d jobs are killed and handed back, and no crash is counted"
            worker.actions.log(logging.WARNING, text, self._stopped_for, runner_pool.running, code="shutdown.timeout")
            runner_pool.stops.kill_all(self._stopped_for)
            # A server that is full stores no graft.
            self._endings.interrupt_growth()
            timers.clear("stop")
            timers.clear("interrupt")

    def _retired(self, reply: bool) -> None:
        if not reply and not self._refused_once:
            # Others than we know of: look which, and hand them back.
            self._refused_once = True
            self._requests.send_first([self._reconciler.look()])
            return
        self._leave(holds=not reply)

    def _leave(self, *, holds: bool) -> None:
        """Leave now, and say so where the store knows us; ``holds``: as far as that knows, jobs run here."""
        worker = self._worker
        if holds:
            text = "%s still holds jobs; they come back when its lease is over"
            worker.actions.log(logging.WARNING, text, worker.owner, code="worker.left_jobs")
        if worker.owner:
            text = "worker %s leaves: jobs that have run: %d"
            worker.actions.log(logging.INFO, text, worker.owner, self._endings.finished, code="worker.left")
        worker.phase = "left"


# Renewals in a row that count other jobs as ours than we do, before we look which: a claim may be under way in one.
DOUBTS = 2


class Core:
    """One incarnation after another of one worker's claiming side.

    Attributes:
        worker: what all parts know.
        runner_pool, lines, ends, demand, maintenance, vitals: parts that the loop and tests look at.
        awoken: a sleep ended in this turn; its jobs went out, all else is decided in the next.
    """

    def __init__(self, worker: WorkerState) -> None:
        self.worker = worker
        self._requests = worker.requests
        runner_pool = self.runner_pool = RunnerPool(worker)
        self.report = SelfReport(worker, runner_pool)
        maintenance = self.maintenance = Maintenance(worker, self.report.news, self._held)
        demand = self.demand = ClaimDemand(worker, runner_pool)
        lines = self.lines = LocalQueues(runner_pool.assignment)
        endings = self.ends = Endings(worker, lines)
        placing = self._placement = Placement(worker, runner_pool, lines, endings, demand)
        settling = self._settlement = Settlement(worker, placing, maintenance)
        claiming = self._claiming = Claiming(worker, placing, maintenance)
        reconciler = self._reconciler = Reconciler(worker, placing, settling)
        self._departure = Departure(worker, placing, maintenance, claiming, settling, reconciler)
        self._control = RemoteControl(worker, placing, maintenance, self.report)
        self.vitals = Vitals(worker, placing, maintenance, claiming)
        self._handlers = self._make_handlers()
        self.awoken = False

    def _make_handlers(self) -> dict[type, Callable[[Any], None]]:
        worker, runner_pool, requests = self.worker, self.runner_pool, self._requests
        endings, placement, control, departure = self.ends, self._placement, self._control, self._departure
        return {
            Heard: lambda event: endings.ended(runner_pool.heard(event, worker.now)),
            TakenBack: lambda event: placement.returned(runner_pool.taken_back(event, worker.now)),
            Spawned: lambda event: runner_pool.supply.up(event, worker.now),
            RunnerClosed: lambda event: runner_pool.closed(event.runner, garbled=event.garbled),
            RunnerDied: lambda event: placement.returned(runner_pool.died(event, worker.now)),
            StackHeard: control.stacks.heard,
            Drain: lambda event: departure.drain(now=event.now),
            Resize: lambda event: control.grow(event.by),
            Size: lambda event: control.resize(event.kind, event.size),
            Orphaned: lambda _: departure.orphaned(),
            Replied: self._replied,
            CallRefused: self._refused,
            Woken: self._woke,
            Ready: lambda _: requests.may_send(),
            Disconnected: lambda _: requests.lost(),
            Connected: lambda _: self._connected(),
            Mail: lambda event: control.mailed(event.text),
        }

    # -- for the loop -----------------------------------------------------------------------------------------------

    def start(self, predecessors: Sequence[str], now: float) -> Sequence[Action]:
        """Begin to work; ``predecessors``: the incarnations that this one takes over from, whose processes are dead."""
        self.worker.now = now
        for predecessor in predecessors:
            self.maintenance.reclaim.add(predecessor, known=True)
        for kind in self.worker.kinds:
            self.runner_pool.supply.resize(kind, self.worker.options.runners(kind))
        return self.on((), now)

    def on(self, events: Sequence[Event], now: float) -> Sequence[Action]:
        """What to do about events, and about what is due now. To be called again at once while it is :attr:`hasty`.

        Args:
            events: in their order.
            now: monotonic seconds; never less than before.
        """
        worker, claiming = self.worker, self._claiming
        worker.now, self.awoken = now, False
        if claiming.unnoted:
            claiming.note()
        if claiming.arrivals:
            claiming.hand_out()
        for event in events:
            self._handlers[type(event)](event)
            if claiming.unnoted and len(events) > 1:
                claiming.note()
        if worker.phase == "left":
            self.runner_pool.supply.dismiss_idle()
        elif not self.awoken:
            # Else an idle runner gets its job first.
            self._decide(now)
        self._requests.firsts = False
        return worker.actions.take()

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
        now, due = self.worker.now, self.maintenance.next
        first = min(self.worker.timers.next(now), self._requests.next(now))
        return min(first, self.runner_pool.stops.limits.next, due if due > now else NEVER)

    # -- a turn -----------------------------------------------------------------------------------------------------

    def _decide(self, now: float) -> None:
        worker, runner_pool, requests, claiming = self.worker, self.runner_pool, self._requests, self._claiming
        cancels = self.maintenance.renewal.cancels
        self._placement.demand.begin_turn(now)
        runner_pool.stops.enforce(now)
        while cancels:
            self._placement.cancel(cancels.popleft())
        if refused := self.ends.take_refused():
            self._placement.close(refused)
        runner_pool.recall_stalled(now)
        runner_pool.supply.respawn(now)
        if runner_pool.assignment.changed and not worker.fenced:
            self._placement.serve(now)
        self._departure.look(now)
        self._departure.keep_fence(now)
        if requests.ready and (steps := self._steps(now) if worker.owner else self._register(now)):
            requests.send(steps)
        if claiming.paused != self.maintenance.renewal.paused:
            # Sleep on those that are not paused.
            claiming.paused = self.maintenance.renewal.paused
            requests.wake_up()
        if requests.armed:
            if claiming.claimable(now) is not None:
                # What it sleeps for is less than what it can take by now.
                requests.wake_up()
        elif requests.ready and not worker.options.burst and not claiming.waits:
            claiming.sleep(now)

    def _steps(self, now: float) -> list[Step]:
        """Everything that is due, for one round trip: notes before ends, ends before a claim."""
        requests = self._requests
        steps = requests.again(now)
        wanted = None if requests.armed else self._claiming.claimable(now)
        if (self.ends or self.runner_pool.notes) and not requests.waits(*ENDS):
            steps += self._settlement.steps(now, claims=wanted is not None)
        if now >= self.maintenance.next:
            steps += self.maintenance.steps(now)
        if self.maintenance.renewal.doubts >= DOUBTS and not requests.pauses("holds", now):
            # Behind the settle and before the claim, so that the store has seen all that we know.
            self.maintenance.renewal.doubts = 0
            steps.append(self._reconciler.look())
        steps += self._control.stacks.steps(now)
        steps += self.ends.growth.steps()
        steps += self._placement.inputs.steps()
        if wanted is not None:
            steps += self._claiming.steps(now, wanted)
        return steps

    # -- the store --------------------------------------------------------------------------------------------------

    def _register(self, now: float) -> list[Step]:
        worker = self.worker
        if worker.phase != "working" or worker.requests.pauses("register", now):
            return []
        owner = f"{worker.place}:{worker.dice.getrandbits(32):08x}"
        metadata: list[str | int] = ["place", worker.place, "queues", ",".join(worker.options.queues.names)]
        metadata += ["dispatcher", worker.pid]
        if weights := worker.options.queues.weights:
            metadata += ["weights", ",".join(f"{weight:g}" for weight in weights)]
        metadata += ["parent", worker.parent] if worker.parent else []
        metadata += ["version", __version__, *self.report.sizes()]
        metadata += budgets(worker.tasks, worker.settings.max_crashes)
        tasks = {name: task.kind for name, task in worker.tasks.items()}
        lease = microseconds(worker.settings.lease)
        call = consume.register(worker.keys, owner, lease, metadata, tasks=tasks)
        return [(call, lambda spared: self._registered(owner, now, spared)), self.maintenance.limits.first(owner, now)]

    def _registered(self, owner: str, sent: float, spared: int) -> None:
        worker = self.worker
        worker.owner, worker.fenced, worker.starts = owner, False, Starts()
        self.demand.begin()
        self.ends.growth.owner = owner
        self.maintenance.begin(owner, sent, spared / 1e6)
        self.report.begin()
        worker.actions.add(Owner(owner))
        self.runner_pool.supply.tell_begun()
        worker.actions.add(Subscribe(worker.keys.mail(owner)))
        worker.actions.log(
            logging.INFO, "worker %s serves %s", owner, ", ".join(worker.options.queues.names), code="worker.serves"
        )

    def _held(self) -> int:
        return len(self.worker.starts.held) + self._claiming.leased

    def _connected(self) -> None:
        """Before anything that was under way is sent again: see whether the store remembers all."""
        if self.worker.owner:
            self.ends.growth.restart()
            self._requests.forget(*GROWTH)
            self._requests.send_first([*self._reconciler.outrun(), self._reconciler.look()])
            # What was written to us meanwhile is lost: that a job was cancelled, or a queue resumed.
            self.maintenance.renewal.renew_soon()

    def _replied(self, event: Replied) -> None:
        self._requests.accepted(event.script)
        event.read(event.reply)

    def _refused(self, event: CallRefused) -> None:
        """All else goes on. Where a sleep's claim was refused, no other sleep begins before one is accepted."""
        if event.asleep:
            self._requests.armed = False
        self._requests.refused(event.step, self.worker.now, self.worker.dice.random())

    def _woke(self, event: Woken) -> None:
        self._requests.armed, self._claiming.woken = False, event.by_queue
        self._requests.accepted("claim")
        event.read(event.reply)
        self.awoken = True
