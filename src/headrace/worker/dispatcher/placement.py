"""Claims become starts: checked, given to a runner that has room, or left waiting for inputs or for one place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

import msgspec

from headrace.errors import HeadraceError
from headrace.model.ended import Cancelled, Corrupt, Failed, Parked, Released
from headrace.model.ids import is_ordered
from headrace.model.job import Claim, JobError, error_json
from headrace.model.limit_rules import gates_of
from headrace.model.options import OWN, OWN_AT_ONCE, Kind
from headrace.model.workflow import log_fields
from headrace.protocol import consume
from headrace.settings import microseconds
from headrace.tasks.task import RunPlan
from headrace.worker.dispatcher.assignment import Assignment, Attempt, Waiting
from headrace.worker.dispatcher.claim_demand import ClaimDemand
from headrace.worker.dispatcher.endings import Endings
from headrace.worker.dispatcher.job_stops import JobStops
from headrace.worker.dispatcher.local_queues import MOST as MOST_WAITING
from headrace.worker.dispatcher.local_queues import AwayLimits, LocalQueues
from headrace.worker.dispatcher.runner_pool import Returned, RunnerPool, RunnerSupply
from headrace.worker.dispatcher.worker_state import Desk, Worker
from headrace.worker.dispatcher.workflow_growth import Inputs, too_large
from headrace.worker.messages import before_start
from headrace.worker.worker_options import SHARED

# For how long it is known that a gate was closed (microseconds): jobs claimed before have begun by then, or gone back.
RECALL = 1_000_000
# A claim that fits nowhere, and the kind of runner that it needs.
Refused = tuple[Claim, Kind]


class Placement:
    """Hands jobs out.

    Attributes:
        away: holds of jobs whose limits are on another shard; None: there are none.
        inputs: nodes of workflows that wait for outputs.
        in_time: whether a job that waited here may still start; one that may not ends.
    """

    def __init__(
        self,
        worker: Worker,
        desk: Desk,
        pool: RunnerPool,
        assignment: Assignment,
        supply: RunnerSupply,
        stops: JobStops,
        local_queues: LocalQueues,
        endings: Endings,
        demand: ClaimDemand,
    ) -> None:
        self.inputs = Inputs(desk.keys, self.feed)
        self.away: AwayLimits | None = None
        # Where a worker serves several shards, the core asks at the shard of the job.
        self.in_time: Callable[[Waiting], bool] = self.may_begin
        self._worker, self._desk = worker, desk
        self._pool, self._assignment, self._supply, self._stops = pool, assignment, supply, stops
        self._local_queues, self._endings, self._demand = local_queues, endings, demand
        self._growth = endings.growth
        # Kind and plan of jobs without options of their own, by task: every job passes here.
        self._plans: dict[str, tuple[Kind, RunPlan]] = {}
        # Gates that refused calls closed, each with the last token that was given before.
        self._closed: dict[str, int] = {}

    @property
    def busy(self) -> bool:
        return bool(self.held or self._endings or self._growth or self.inputs or self.waiting)

    @property
    def waiting(self) -> int:
        return self.away.waiting(self._desk.has) if self.away is not None and self.away.asking else 0

    @property
    def expected(self) -> int:
        """Of those that wait for home, for how many a runner is kept free."""
        return 0 if self.away is not None and self.away.silent else self.waiting

    @property
    def held(self) -> int:
        return self._pool.running + self._local_queues.waiting

    @property
    def _working(self) -> bool:
        return self._worker.phase == "working" and not self._desk.fenced

    @property
    def takes(self) -> bool:
        return self._working and self._local_queues.waiting < MOST_WAITING

    def start(self, claimed: consume.Claimed) -> None:
        if any(map(needs_check, claimed.jobs)):
            self.hand_out([claim for claim in claimed.jobs if self._startable(claim, claimed.now)])
            # The outputs that they wait for may be known from the batch before.
            self.feed()
        else:
            self.hand_out(claimed.jobs)

    def feed(self) -> None:
        fed: list[Claim] = []
        for inputs, claims in self.inputs.ready():
            if not (text := too_large(inputs)):
                fed += [msgspec.structs.replace(claim, inputs=inputs) for claim in claims]
                continue
            for claim in claims:
                self._endings.end_with(claim, Failed, "PayloadTooLarge", text)
        self.hand_out(fed)

    def returned(self, returned: Returned) -> None:
        self._endings.ended(returned.ends)
        back = returned.back
        bound = [start for start in back if start.bound] if self._worker.phase == "working" else []
        if bound:
            self._local_queues.put_back(bound)
        self.hand_out([start.claim for start in back if not (bound and start.bound)])

    def close(self, gates: Collection[str], token: int = 0) -> None:
        """Calls were refused: jobs of these gates that have not begun go back to the server, unless their token is
        beyond ``token``, the last one that was given before the gates closed.
        """
        oldest = self._desk.server_time(self._worker.now) - RECALL
        self._closed = {gate: last for gate, last in self._closed.items() if last > oldest}
        self._closed |= dict.fromkeys(gates, token or max(self._desk.starts.held, default=0))
        self._pool.recall(self._shut)

    def _shut(self, claim: Claim) -> bool:
        return any(self._closed.get(gate, 0) >= claim.token for gate in gates_of(claim.lane))

    def hand_out(self, claims: list[Claim]) -> None:
        if refused := self.place(claims):
            self.hand_back(refused)

    def place(self, claims: Iterable[Claim]) -> list[Refused]:
        worker, assignment, refused = self._worker, self._assignment, list[Refused]()
        now, starts, working, away = worker.now, list[Attempt](), self._working, self.away
        for claim in claims:
            found = self._plan(claim) if claim.options else self._plans.get(claim.task) or self._plan(claim)
            if found is None:
                continue
            kind, plan = found
            if self._closed and self._shut(claim):
                self._endings.end(claim, Released())
                # The runner that had it may take another job.
                assignment.freed.add(kind)
                continue
            handle, limited = None, away is not None and away.limits(claim)
            if working:
                # Of an order no other job runs, so that any runner will do. A broadcast cannot go back to the server,
                # where no other worker would run it.
                broadcast = claim.queue[0] == "@"
                waits = broadcast or (claim.key and not is_ordered(claim.id))
                suspect = claim.crashes > 0
                # One that may start at most once is not sent ahead: a killed worker would end it before its start.
                alone = suspect or claim.once
                if suspect and kind in SHARED:
                    handle = self._supply.isolated(kind)
                elif not waits:
                    handle = assignment.choose(kind, claim.task, now, alone=alone)
                elif not broadcast and (claim.lane or claim.once or limited):
                    # It holds its limits, so it waits for no runner: others of the limits would wait for that one, too.
                    handle = assignment.choose_by_place(kind, claim, now, alone=alone)
                elif self._local_queues.add((claim, plan), kind):
                    # At once: a job of any place that comes behind it must find the room that is left.
                    starts += self._local_queues.serve(now, self.in_time)
                    continue
            if handle is None:
                refused.append((claim, kind))
            elif away is None or not limited or away.admits(claim):
                # Only what a runner is there for asks at home: it takes the limits, and would have to give them back.
                starts.append(start := Attempt(claim, plan, handle))
                assignment.assign(handle, start, now)
        self._pool.give(starts, now)
        return refused

    def hand_back(self, refused: Iterable[Refused]) -> None:
        for claim, kind in refused:
            self._endings.end(claim, Released())
            if self._working:
                if kind == OWN and OWN not in self._assignment.kinds:
                    self._supply.resize(OWN, OWN_AT_ONCE)
                self._demand.handed_back(kind)

    def serve(self, now: float) -> None:
        self._pool.give(self._local_queues.serve(now, self.in_time), now)

    def _plan(self, claim: Claim) -> tuple[Kind, RunPlan] | None:
        """What kind of runner a job needs, and how to run it; None for one that cannot run here, which ends."""
        task = self._worker.tasks.get(claim.task)
        if task is None:
            text = "job %s wants the unknown task %s: parked until a worker knows it"
            # Any program may have written it: a terminal must not obey it.
            name = claim.task if claim.task.isprintable() else ascii(claim.task)
            self._worker.actions.log(logging.WARNING, text, claim.id, name, code="job.parked", facts=log_fields(claim))
            self._endings.end(claim, Parked())
            return None
        try:
            found = task.kind, task.plan(claim.options)
        except (HeadraceError, msgspec.MsgspecError) as error:
            self._endings.end_with(claim, Corrupt, "Corrupt", str(error))
            return None
        if not claim.options:
            self._plans[claim.task] = found
        return found

    def _startable(self, claim: Claim, now: int) -> bool:
        if not self._may_start(claim, now):
            return False
        # A worker that stops asks for no outputs: the store may not answer.
        waits = bool(claim.parents) and self._working
        if waits:
            self.inputs.add(claim)
        return not waits

    def may_begin(self, waiting: Waiting) -> bool:
        """Whether a job of this shard that waited here may still start; one that may not ends."""
        if self._desk.fenced:
            self._endings.end(waiting[0], Released())
            return False
        return self._may_start(waiting[0], self._desk.server_time(self._worker.now))

    def _may_start(self, claim: Claim, now: int) -> bool:
        ended = before_start(claim, now, microseconds(self._worker.settings.failure_ttl))
        if ended is not None:
            if isinstance(ended, Corrupt):
                text, facts = "job %s: its record names no task", {"job": claim.id}
                self._worker.actions.log(logging.ERROR, text, claim.id, facts=facts, code="job.no_task")
            self._endings.end(claim, ended)
        return ended is None

    def cancel(self, id: str) -> None:
        waiting = self._local_queues.cancel(id) if self._local_queues.waiting else None
        claims = [waiting[0]] if waiting else self.inputs.take(id)
        if not claims and self.away is not None:
            claims = self.away.take_all(lambda claim: claim.id == id)
        if not claims:
            self._stops.cancel(id, self._worker.now)
        for claim in claims:
            ttl = waiting[1].failure_ttl if waiting else microseconds(self._worker.settings.failure_ttl)
            error = error_json(JobError(type="Cancelled", message="cancelled before it started"))
            self._endings.end(claim, Cancelled(error, ttl))

    def hand_back_waiting(self) -> None:
        has = self._desk.has
        waiting = [claim for claim, _ in self._local_queues.take_all(has)] + self.inputs.take_all()
        for claim in waiting if self.away is None else waiting + self.away.take_all(has):
            self._endings.end(claim, Released())


def needs_check(claim: Claim) -> bool:
    return bool(claim.expires or claim.parents or not claim.task)
