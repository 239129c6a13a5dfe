"""The worker at one shard: it registers, decides what is sent to the store in a turn, and retires. Does no I/O.

It stops its runners before the lease ends if that cannot be renewed. No job is lost by any of these.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from headrace import __version__
from headrace.protocol import consume
from headrace.protocol.keys import Keys
from headrace.settings import microseconds
from headrace.tasks.task import budgets
from headrace.worker.dispatcher import dispatcher_events as events
from headrace.worker.dispatcher.claim_demand import ClaimDemand
from headrace.worker.dispatcher.claiming import Claiming, ClaimTurns
from headrace.worker.dispatcher.endings import Endings
from headrace.worker.dispatcher.local_queues import AwayLimits, LocalQueues
from headrace.worker.dispatcher.maintenance import Maintenance
from headrace.worker.dispatcher.placement import Placement
from headrace.worker.dispatcher.remote_control import RemoteControl, SelfReport, StackRequests, Vitals
from headrace.worker.dispatcher.runner_pool import RunnerPool
from headrace.worker.dispatcher.settlement import Reconciler, Settlement
from headrace.worker.dispatcher.worker_state import ENDS, NEVER, Desk, Starts, Worker
from headrace.worker.dispatcher.workflow_growth import GROWTH
from headrace.worker.health_stamps import fence_at
from headrace.worker.messages import Owner

# While refused calls of these scripts wait, the worker has more to say.
LAST = (*ENDS, "limit_release", "retire")
# Renewals in a row that count other jobs as ours than we do, before we ask which: a claim may be under way in one.
DOUBTS = 2


class Incarnation:
    """The worker at one shard, under one name after the other.

    Attributes:
        handlers: what becomes of each event of the store.
        awoken: a sleep ended in this turn; its jobs went out, all else is decided in the next.
        retired: nothing is held any more.
        stirred, due: of several shards: whether something happened here since the last exchange, and :attr:`next` then.
        holds: of jobs at other shards, whose limits are here; None: there are none.
    """

    def __init__(
        self, worker: Worker, keys: Keys, pool: RunnerPool, local_queues: LocalQueues, turns: ClaimTurns | None = None
    ) -> None:
        assignment, supply, stops = pool.assignment, pool.supply, pool.stops
        self._worker, self._pool, self._assignment, self._supply, self._stops = worker, pool, assignment, supply, stops
        many = turns is not None
        desk = self.desk = Desk(worker, keys, pool.notes[keys.shard if many else 0], many=many)
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
        self._settlement = Settlement(worker, desk, assignment, endings, demand, inputs, maintenance)
        claiming = self.claiming = Claiming(worker, desk, turns, endings, demand, placement, inputs, maintenance)
        self._reconciler = Reconciler(worker, desk, endings, placement, self._settlement)
        stacks = self.stacks = StackRequests(worker, desk, assignment)
        self.control = RemoteControl(
            worker, supply, local_queues, demand, placement, renewal, maintenance.unparking, report, stacks
        )
        self.vitals = Vitals(worker, desk, assignment, renewal, claiming)
        self.handlers: dict[type, Callable[[Any], None]] = {
            events.Replied: self._replied,
            events.CallRefused: self._refused,
            events.Woken: self._woke,
            events.Ready: lambda _: self._requests.may_send(),
            events.Disconnected: lambda _: self._requests.lost(),
            events.Connected: lambda _: self._connected(),
            events.Mail: lambda event: self.control.mailed(event.text),
        }
        self.awoken = self.retired = False
        self.stirred, self.due = True, NEVER
        self.holds: AwayLimits | None = None
        # Whether the store had still counted jobs as ours when it was to be retired.
        self._refused_once = False
        # How many names it has had.
        self._named = 0

    def begin_turn(self) -> None:
        self.awoken = False
        self.claiming.note()
        if self.claiming.arrivals:
            self.stirred = True
            self.claiming.hand_out()

    def obey(self, now: float) -> None:
        placement, cancels = self.placement, self.renewal.cancels
        self.demand.begin_turn(now)
        while cancels:
            placement.cancel(cancels.popleft())
        if refused := self.endings.take_refused():
            placement.close(refused)

    def has_nothing_to_do(self, now: float) -> bool:
        if self.stirred or now >= self.due or self.endings or self.desk.notes or self.growth or self.inputs:
            return False
        if self.holds is not None or self.demand.own_may_wait:
            return False
        return self.claiming.others_take_all_room or self.claiming.sleeps_well

    def stop_claiming(self) -> None:
        self._requests.wake_up()
        if self._pool.running or self._worker.phase == "quiet":
            # Others learn of it, and why their jobs wait.
            self.renewal.renew_soon()
        self.placement.hand_back_waiting()

    def exchange(self, now: float) -> None:
        worker, requests, claiming = self._worker, self._requests, self.claiming
        self._keep_fence(now)
        if requests.ready and (steps := self._steps(now) if self.desk.owner else self._register(now)):
            requests.send(steps)
        if claiming.paused != self.renewal.paused:
            claiming.paused = self.renewal.paused
            requests.wake_up()
        if requests.armed:
            if claiming.claimable(now) is not None:
                # There is more room now than the armed claim asks for.
                requests.wake_up()
        elif requests.ready and not worker.options.burst and not claiming.must_wait:
            claiming.sleep(now)

    def _steps(self, now: float) -> list[events.Step]:
        requests = self._requests
        steps = requests.again(now)
        wanted = None if requests.armed else self.claiming.claimable(now)
        if (self.endings or self.desk.notes) and not requests.waits(*ENDS):
            steps += self._settlement.steps(now, claims=wanted is not None)
        if now >= self.maintenance.next:
            steps += self.maintenance.steps(now)
        if not requests.pauses("holds", now) and self.renewal.take_doubts(DOUBTS):
            # Behind the settle and before the claim, so that the store has seen all that we know.
            steps.append(self._reconciler.check())
        if self.holds is not None:
            steps += self.holds.steps(now)
        steps += self.stacks.steps(now)
        steps += self.growth.steps()
        steps += self.inputs.steps()
        if wanted is not None:
            steps += self.claiming.steps(now, wanted)
        return steps

    @property
    def next(self) -> float:
        now, due = self._worker.now, self.maintenance.next
        return min(self.desk.timers.next(now), self._requests.next(now), due if due > now else NEVER)

    def _connected(self) -> None:
        if self.desk.owner:
            # Before anything that was under way is sent again: see whether the store remembers all.
            self.growth.restart()
            self._requests.forget(*GROWTH)
            self._requests.send_first([*self._reconciler.outrun(self.renewal.promise), self._reconciler.check()])
            # Mail that came meanwhile is lost: that a job was cancelled, or a queue resumed. And the store may have
            # forgotten what this worker told of itself, such as that it claims no more, and what its code declares.
            self.maintenance.declare_anew(self._worker.now)
            self._report.begin()
            self.control.report_sizes()
            if self.holds is not None:
                self.holds.keep_all()

    def _replied(self, event: events.Replied) -> None:
        self._requests.accepted(event.script)
        event.read(event.reply)

    def _refused(self, event: events.CallRefused) -> None:
        """All else goes on. Where a sleep's claim was refused, no other sleep begins before one is accepted."""
        if event.asleep:
            self._requests.armed = False
        self._requests.refused(event.step, self._worker.now, self._worker.random.random())

    def _woke(self, event: events.Woken) -> None:
        self._requests.armed = False
        self._requests.accepted("claim")
        self.claiming.woken = event.by_queue
        event.read(event.reply)
        self.awoken = True

    def _register(self, now: float) -> list[events.Step]:
        worker, keys = self._worker, self.desk.keys
        if worker.phase not in ("working", "quiet") or self._requests.pauses("register", now):
            return []
        if self._named == len(worker.names):
            worker.names.append(f"{worker.place}:{worker.random.getrandbits(32):08x}")
        owner = worker.names[self._named]
        names = worker.options.queues.names
        metadata: list[str | int] = ["place", worker.place, "queues", ",".join(names), "dispatcher", worker.pid]
        if weights := worker.options.queues.weights:
            metadata += ["weights", ",".join(f"{weight:g}" for weight in weights)]
        metadata += ["parent", worker.parent] if worker.parent else []
        metadata += ["code", worker.settings.code_version] if worker.settings.code_version else []
        metadata += ["version", __version__, *self._report.sizes()]
        metadata += budgets(worker.tasks, worker.settings.max_crashes)
        tasks = {name: task.kind for name, task in worker.tasks.items()}
        call = consume.register(keys, owner, microseconds(worker.settings.lease), metadata, tasks=tasks)
        declared = [self._limits.first(owner, now)] if self.desk.home else []
        return [(call, lambda spared: self._registered(owner, now, spared)), *declared]

    def _registered(self, owner: str, sent: float, spared: int) -> None:
        worker, desk = self._worker, self.desk
        self._named += 1
        desk.owner, desk.fenced, desk.starts = owner, False, Starts()
        self.demand.begin()
        self.growth.owner = owner
        self.maintenance.begin(owner, sent, spared / 1e6)
        self._report.begin()
        worker.actions.add(Owner(owner))
        self._supply.on_registration()
        desk.actions.add(events.Subscribe(desk.keys.mail(owner)))
        queues = ", ".join(worker.options.queues.names)
        worker.actions.log(logging.INFO, "worker %s serves %s%s", owner, queues, self.desk.place, code="worker.serves")

    def _held(self) -> int:
        return len(self.desk.starts.held) + self.claiming.leased

    def _keep_fence(self, now: float) -> None:
        """Stop what runs before another worker may start it, and hand it back when the store is there again. If the
        lease can be renewed then, no other worker has taken over, and the incarnation goes on; else a new one begins.
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
            text = "the server lost the lease of %s%s: stopping its jobs"
            text = text if lost else "the lease of %s%s could not be kept: stopping its jobs"
            facts = (desk.owner, desk.place)
            worker.actions.log(logging.ERROR, text, *facts, code="store.lost_data" if lost else "lease.lost")
            desk.fenced = True
        self._stops.fence(desk.has)
        requests.wake_up()
        self.placement.hand_back_waiting()
        self.endings.interrupt_growth()
        if self._pool.runs(desk.has) or not requests.ready or requests.armed or requests.waits(*ENDS):
            return
        if self.endings:
            # No other worker may have taken over, if the server itself was away: then these are handed back.
            requests.send(self._settlement.all())
        elif renewal.gone:
            self._reclaim.add(desk.owner, is_dead=False)
            desk.owner = ""
            # Renewals and claims of that incarnation.
            requests.forget()

    def retire(self, why: str, *, at_once: bool) -> None:
        """End it when the store knows all; ``at_once``: also where that does not answer. ``why``: out of order."""
        worker, desk, requests = self._worker, self.desk, self._requests
        # Where its registration is not answered, it may be an incarnation that must be retired.
        registers = not (desk.owner or requests.ready or requests.away)
        if not (desk.owner or registers) or at_once:
            self._leave(holds_jobs=desk.starts.unreported)
        elif requests.ready and not (requests.armed or self._has_more_to_say):
            keep = microseconds(worker.settings.failure_ttl)
            requests.send([(consume.retire(desk.keys, desk.owner, keep, why), self._on_retirement)])

    @property
    def _has_more_to_say(self) -> bool:
        # What the store still counts as ours may be of a claim whose answer was lost, and whose repetition was refused.
        last = (*LAST, "claim") if self._refused_once else LAST
        says = self.endings or self.desk.notes or self.claiming.arrivals or self.holds
        return bool(says) or self._requests.waits(*last)

    def _on_retirement(self, reply: bool) -> None:
        if reply or self._refused_once:
            self._leave(holds_jobs=not reply)
            return
        # Others than we know of: ask which, and hand them back.
        self._refused_once = True
        self._requests.send_first([self._reconciler.check()])

    def _leave(self, *, holds_jobs: bool) -> None:
        actions, owner = self._worker.actions, self.desk.owner
        if holds_jobs:
            text = "%s still holds jobs; they come back when its lease is over"
            actions.log(logging.WARNING, text, owner, code="worker.left_jobs")
        if owner:
            text = "worker %s leaves: jobs that have run%s: %d"
            actions.log(logging.INFO, text, owner, self.desk.place, self.endings.finished, code="worker.left")
        self.retired = True
