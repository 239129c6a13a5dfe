"""The core of a dispatcher: events in, actions out (dispatcher_events.py). It decides what a worker does with its jobs.

Its parts, each with its own module; each knows only those before it:

1. ends go into a batch (endings.py), claims become starts on runners (placement.py, runners/);
2. ends are settled in batches, and one round trip settles and claims (settlement.py);
3. claims are made while there is room (claiming.py, admission.py);
4. the lease is renewed, due jobs are promoted, ... with the same round trips (duties/);
5. runners are stopped before the lease ends if it cannot be renewed, and the worker leaves in order (departure.py);
6. others ask it for something (remote_control.py), and it says how it is (remote_control.py).

This module puts them together: which part hears of which event, and in which order all is looked at in a turn. Nothing
here has a socket, clock, dice or process: time, random numbers and what only the system knows are given to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from headrace import __version__
from headrace.protocol import consume, operations
from headrace.settings import microseconds
from headrace.tasks.task import budgets
from headrace.worker.dispatcher.admission import Demand
from headrace.worker.dispatcher.claiming import Claiming
from headrace.worker.dispatcher.departure import Departure
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
from headrace.worker.dispatcher.maintenance import Maintenance
from headrace.worker.dispatcher.placement import Placement
from headrace.worker.dispatcher.remote_control import RemoteControl, SelfReport, Vitals
from headrace.worker.dispatcher.runners.local_queues import LocalQueues
from headrace.worker.dispatcher.runners.runner_pool import RunnerPool
from headrace.worker.dispatcher.settlement import Reconciler, Settlement
from headrace.worker.dispatcher.starts import Starts
from headrace.worker.dispatcher.worker_state import ENDS, NEVER, WorkerState
from headrace.worker.dispatcher.workflow_growth import GROWTH
from headrace.worker.messages import Drain, Owner, Resize, Size, Spawned

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
        demand = self.demand = Demand(worker, runner_pool)
        lines = self.lines = LocalQueues(runner_pool.assignment)
        endings = self.ends = Endings(worker, lines)
        placing = self._placement = Placement(worker, runner_pool, lines, endings, demand)
        settling = self._settlement = Settlement(worker, placing, maintenance)
        claiming = self._claiming = Claiming(worker, placing, maintenance)
        reconciler = self._reconciler = Reconciler(worker, placing, settling)
        self._departure = Departure(worker, placing, maintenance, claiming, settling, reconciler)
        self._control = RemoteControl(worker, placing, maintenance, self.report)
        self.vitals = Vitals(worker, placing, maintenance, claiming)
        self._heed = self._hearers()
        self.awoken = False

    def _hearers(self) -> dict[type, Callable[[Any], None]]:
        """Who hears of which event."""
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
            self._heed[type(event)](event)
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
            if lines := self.runner_pool.advice.learned():
                steps.append((operations.learn(self.worker.keys, lines), lambda _: None))
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
        metadata += ["anchor", worker.anchor] if worker.anchor else []
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
        """How many jobs the store should count as ours."""
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
