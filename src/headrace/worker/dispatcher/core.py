"""The core of a dispatcher: events in, actions out (``dispatcher_events.py``). Decides; does no I/O.

:class:`Core` puts the parts together: which part gets which event, and in which order a turn asks them. Each part has
its own module and knows only those before it. An ``Incarnation`` (``incarnation.py``) is the worker at one shard.
:class:`Core` has the runners, one incarnation for each shard, and ends the worker.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from headrace.model.ended import Snoozed
from headrace.protocol.keys import Keys
from headrace.worker.dispatcher import dispatcher_events as events
from headrace.worker.dispatcher.assignment import Attempt, Waiting
from headrace.worker.dispatcher.claiming import ClaimTurns
from headrace.worker.dispatcher.incarnation import Incarnation
from headrace.worker.dispatcher.local_queues import AwayLimits, LocalQueues
from headrace.worker.dispatcher.runner_pool import Returned, RunnerPool
from headrace.worker.dispatcher.worker_state import NEVER, SHARD, Worker, desk_of
from headrace.worker.health_stamps import REGISTERED
from headrace.worker.messages import TIME_OVER, Drain, Quiet, Size, Spawned

# A worker that cannot reach the store at shutdown leaves this long (seconds) after its runners ended.
FAREWELL = 10.0
# Of the shutdown timeout, jobs that still run have this part (one in this many) to clean up after they were
# interrupted, but no more than after a soft limit.
CLEAN_UP = 5

_T = TypeVar("_T", events.End, Attempt)


class Core:
    def __init__(self, worker: Worker, *keys: Keys) -> None:
        self.worker = worker
        pool = self.runner_pool = RunnerPool(worker, len(keys))
        self._assignment, self._supply, self._stops = pool.assignment, pool.supply, pool.stops
        self._limits = self._stops.limits
        self.local_queues = LocalQueues(self._assignment)
        self._turns = ClaimTurns(worker, self._assignment) if len(keys) > 1 else None
        self.incarnations = tuple(Incarnation(worker, one, pool, self.local_queues, self._turns) for one in keys)
        self.incarnation = self.incarnations[0]
        self._handlers = self._make_handlers()
        for one in self.incarnations:
            one.control.on_stop = lambda: self._drain(now=False)
            one.control.on_quiet = self._quiet
        holds = self._holds = AwayLimits(worker, self.incarnation.desk)
        if self._turns is None:
            self._handlers |= self.incarnation.handlers
        else:
            pool.on_spent, self.incarnation.holds = holds.add_spent, holds
            for one in self.incarnations:
                one.placement.in_time, one.control.on_resize = self._in_time, self._on_resize
            for one in self.incarnations[1:]:
                one.placement.away, one.endings.on_ends = holds, holds.ended
        # Why what still runs at the end is stopped.
        self._stopped_for = TIME_OVER
        # What ended the worker, if it does not leave in order.
        self._why = ""
        # Whether more than one thing happened: else a job that ended a sleep goes out before all else.
        self._several = False
        # Since when there is nothing to run.
        self._idle_since = NEVER

    def _make_handlers(self) -> dict[type, Callable[[Any], None]]:
        worker, pool, home = self.worker, self.runner_pool, self.incarnation
        ended, returned = home.endings.ended, home.placement.returned
        if self._turns is not None:
            ended, returned = self._ended, self._returned
        return {
            events.DeskEvent: self._on_desk_event,
            events.Heard: lambda event: ended(pool.on_messages(event, worker.now)),
            events.TakenBack: lambda event: returned(pool.taken_back(event, worker.now)),
            Spawned: lambda event: self._supply.up(event, worker.now),
            events.RunnerClosed: lambda event: pool.closed(event.runner, garbled=event.garbled),
            events.RunnerDied: lambda event: returned(pool.died(event, worker.now)),
            events.StackHeard: self._on_stacks,
            Drain: lambda event: self._drain(now=event.now),
            Size: lambda event: home.control.resize(event.kind, event.size),
            events.Orphaned: lambda _: self._orphaned(),
        }

    def start(self, dead_predecessors: Sequence[str], now: float) -> Sequence[events.Action]:
        self.worker.now = now
        for one in self.incarnations:
            for predecessor in dead_predecessors:
                one.maintenance.reclaim.add(predecessor, is_dead=True)
        for kind in self.worker.kinds:
            self._supply.resize(kind, self.worker.options.runners(kind))
        if self.worker.options.quiet:
            self._quiet()
        return self.on((), now)

    def on(self, happened: Sequence[events.Event], now: float) -> Sequence[events.Action]:
        """What to do about what happened, and what is due ``now``; call it again at once while it is :attr:`hasty`."""
        worker, claiming = self.worker, self.incarnation.claiming
        worker.now = now
        for one in self.incarnations:
            one.begin_turn()
        self._several = len(happened) > 1
        for event in happened:
            self._handlers[type(event)](event)
            if self._several:
                claiming.note()
        if worker.phase == "left":
            self._supply.dismiss_idle()
        elif not self.awoken:
            # Else an idle runner gets its job first.
            self._decide(now)
        for one in self.incarnations:
            one.desk.requests.firsts = False
        return worker.actions.take()

    @property
    def awoken(self) -> bool:
        if self._turns is None:
            return self.incarnation.awoken
        return any(one.awoken for one in self.incarnations)

    @property
    def hasty(self) -> bool:
        return self.awoken or any(one.claiming.arrivals for one in self.incarnations)

    @property
    def left(self) -> bool:
        return self.worker.phase == "left"

    @property
    def next(self) -> float:
        own = min(self.worker.timers.next(self.worker.now), self._limits.next)
        if self._turns is None:
            return min(own, self.incarnation.next)
        return min(own, *[one.next if one.stirred else one.due for one in self.incarnations])

    def check_vitals(self, now: float) -> tuple[int, float, float]:
        """See :class:`Vitals`. Of several shards one suffices that answers; the first lease that is kept and ends."""
        if self._turns is None:
            return self.incarnation.vitals.check(now)
        found = [one.vitals.check(now) for one in self.incarnations]
        leases = [until for flags, until, _ in found if flags & REGISTERED]
        starving = [since for _, _, since in found if since]
        all_flags = 0
        for flags, _, _ in found:
            all_flags |= flags
        return all_flags, min(leases, default=0.0), min(starving, default=0.0)

    def _decide(self, now: float) -> None:
        pool, assignment = self.runner_pool, self._assignment
        self._stops.enforce(now)
        for one in self.incarnations:
            one.obey(now)
        pool.recall_stalled(now)
        self._supply.respawn(now)
        if assignment.changed and (self._turns or not self.incarnation.desk.fenced):
            self.incarnation.placement.serve(now)
        options = self.worker.options
        if self.worker.phase == "working" and (options.burst or options.max_jobs or options.max_idle):
            self._check_quota(now)
        if self.worker.phase == "draining":
            self._leave_when_done(now)
        if self.left:
            return
        if self._turns is None:
            self.incarnation.exchange(now)
            return
        self._obey_limits(now)
        for one in self.incarnations:
            one.demand.freed |= assignment.freed
        assignment.freed.clear()
        working = self.worker.phase == "working"
        for shard in self._turns.order():
            one = self.incarnations[shard]
            if not (working and one.has_nothing_to_do(now)):
                one.exchange(now)
                one.stirred, one.due = False, one.next

    def _obey_limits(self, now: float) -> None:
        holds = self._holds
        any_lost = holds.check(now)
        ready, holds.ready = holds.ready, []
        for claim in ready:
            self.incarnations[desk_of(claim)].placement.hand_out([claim])
        refused, holds.refused = holds.refused, []
        for claim, pause in refused:
            self.incarnations[desk_of(claim)].endings.end(claim, Snoozed(pause))
        if any_lost:
            self._stops.fence(holds.lost)

    def _on_desk_event(self, event: events.DeskEvent) -> None:
        one = self.incarnations[event.shard]
        one.stirred = True
        one.handlers[type(event.event)](event.event)
        if self._several:
            one.claiming.note()

    def _on_resize(self) -> None:
        for one in self.incarnations:
            one.stirred = True
            one.control.report_sizes()

    def _on_stacks(self, event: events.StackHeard) -> None:
        for one in self.incarnations:
            one.stirred = True
            one.stacks.on_stacks(event)

    def _ended(self, ends: list[events.End]) -> None:
        for shard, some in by_shard(ends).items():
            self.incarnations[shard].endings.ended(some)

    def _returned(self, returned: Returned) -> None:
        self._ended(returned.ends)
        for shard, some in by_shard(returned.back).items():
            self.incarnations[shard].placement.returned(Returned([], some))

    def _in_time(self, waiting: Waiting) -> bool:
        return self.incarnations[desk_of(waiting[0])].placement.may_begin(waiting)

    def _orphaned(self) -> None:
        worker = self.worker
        worker.actions.log(logging.ERROR, "the supervisor died: stopping", code="supervisor.died")
        self._why = self._stopped_for = "its supervisor died"
        self._stops.orphaned = True
        worker.phase = "draining"
        worker.timers.set("stop", worker.now)
        for one in self.incarnations:
            one.stop_claiming()

    @property
    def finished(self) -> int:
        return sum([one.endings.finished for one in self.incarnations])

    def _drain(self, *, now: bool) -> None:
        worker, settings = self.worker, self.worker.settings
        if now:
            self._stopped_for = "the worker was told to stop at once"
        if worker.phase in ("working", "quiet"):
            stop = worker.now + (0.0 if now else settings.shutdown_timeout)
            worker.timers.set("stop", stop)
            self._stop_claiming("draining")
            if stop > worker.now:
                clean_up = min(settings.kill_timeout, settings.shutdown_timeout / CLEAN_UP)
                worker.timers.set("interrupt", stop - clean_up)
                self._stops.stop_all("shutdown", worker.now)
        elif now:
            worker.timers.set("stop", worker.now)

    def _quiet(self) -> None:
        if self.worker.phase == "working":
            self.worker.actions.add(Quiet())
            self._stop_claiming("quiet")

    def _stop_claiming(self, phase: Literal["quiet", "draining"]) -> None:
        worker = self.worker
        name, ran = self.incarnation.desk.owner or (worker.names or [worker.place])[-1], self.finished
        text = "worker %s stops claiming: jobs that have run: %d; that still run: %d"
        facts, quiet = (name, ran, self.runner_pool.running), phase == "quiet"
        worker.actions.log(logging.INFO, text, *facts, code="worker.quiet" if quiet else "worker.draining")
        worker.phase = phase
        self.runner_pool.recall()
        for one in self.incarnations:
            one.stop_claiming()

    def _check_quota(self, now: float) -> None:
        worker, options, timers, alls = self.worker, self.worker.options, self.worker.timers, self.incarnations
        if all(one.claiming.found_none for one in alls):
            self._drain(now=False)
            return
        busy = any(one.placement.busy for one in alls)
        for one in alls if busy else ():
            # What ran may have stored others, at any shard.
            one.claiming.found_none = False
        # A worker that has lost its server does not know whether there is something to run.
        if busy or any(one.claiming.arrivals or not one.desk.owner for one in alls):
            self._idle_since = NEVER
            return
        # Nor does one that has not asked yet, since no runner is there to take it.
        waiting = any(one.demand.known.waiting for one in alls)
        self._idle_since = NEVER if waiting else min(self._idle_since, now)
        timers.set("idle", self._idle_since + options.max_idle)
        ready = all(one.desk.requests.ready for one in alls)
        if options.max_jobs and self.finished >= options.max_jobs:
            self._drain(now=False)
        elif options.max_idle and ready and timers.due("idle", now):
            worker.actions.log(logging.INFO, "there was nothing to run for %g s", options.max_idle, code="worker.idle")
            self._drain(now=False)
        elif options.burst:
            for one in alls:
                if one.desk.requests.ready and not one.claiming.found_none and not one.maintenance.may_make_ready(now):
                    one.demand.may_wait()

    def _leave_when_done(self, now: float) -> None:
        timers = self.worker.timers
        self._supply.dismiss_idle()
        if self.runner_pool.running or any(one.growth or one.inputs for one in self.incarnations):
            self._stop_what_runs(now)
            return
        # Later than its lease another worker has taken over, and nothing is left to tell.
        timers.set("leave", min(timers.at("leave"), now + min(FAREWELL, self.worker.settings.lease)))
        for one in self.incarnations:
            if not one.retired:
                one.retire(self._why, at_once=timers.due("leave", now))
        if all(one.retired for one in self.incarnations):
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
            for one in self.incarnations:
                one.endings.interrupt_growth()
            timers.clear("stop")
            timers.clear("interrupt")


def by_shard(items: list[_T]) -> dict[int, list[_T]]:
    # As desk_of says. Every job passes here, and most of a runner's are of one claim.
    shards = [item.claim.number & SHARD for item in items]
    if shards and shards.count(shards[0]) == len(shards):
        return {shards[0]: items}
    found: defaultdict[int, list[_T]] = defaultdict(list)
    for shard, item in zip(shards, items, strict=True):
        found[shard].append(item)
    return found
