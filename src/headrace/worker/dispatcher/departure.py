"""How an incarnation ends: its lease is lost, its work is done, or it is told to stop. Nothing is lost by any."""

from __future__ import annotations

import logging

from headrace.protocol import consume
from headrace.settings import microseconds
from headrace.worker.dispatcher.claiming import Claiming
from headrace.worker.dispatcher.maintenance import Maintenance
from headrace.worker.dispatcher.placement import Placement
from headrace.worker.dispatcher.settlement import Reconciler, Settlement
from headrace.worker.dispatcher.worker_state import ENDS, NEVER, WorkerState
from headrace.worker.health_stamps import fence_at
from headrace.worker.messages import TIME_OVER

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
        self._pool, self._endings, self._demand = placement.pool, placement.endings, placement.demand
        self._placement, self._maintenance = placement, maintenance
        self._claiming, self._settlement, self._reconciler = claiming, settlement, reconciler
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
