"""Claims become starts: checked, given to a runner that has room, or left waiting for inputs or for one place."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from headrace.errors import HeadraceError
from headrace.model.ended import Cancelled, Corrupt, Failed, Parked, Released
from headrace.model.ids import is_ordered
from headrace.model.job import Claim, JobError, error_json
from headrace.model.job_facts import fields_of
from headrace.model.options import Kind
from headrace.protocol import consume
from headrace.settings import microseconds
from headrace.tasks.task import Plan
from headrace.worker.dispatcher.demand import Demand
from headrace.worker.dispatcher.dispatcher_events import End
from headrace.worker.dispatcher.duties.workflow_inputs import Inputs, too_large
from headrace.worker.dispatcher.endings import Endings
from headrace.worker.dispatcher.runners.assignment import SHARED
from headrace.worker.dispatcher.runners.local_queues import Lines
from headrace.worker.dispatcher.runners.runner_handle import Attempt
from headrace.worker.dispatcher.runners.runner_places import Waiting
from headrace.worker.dispatcher.runners.runner_pool import Returned, RunnerPool
from headrace.worker.dispatcher.worker_state import WorkerState
from headrace.worker.outcomes import before_start

# So long after a refused call what runners give back of its task goes on to the server (seconds).
RECALL = 1.0
# A claim that fits nowhere, and the kind of runner that it needs.
Refused = tuple[Claim, Kind]


class Placement:
    """Hands jobs out.

    Attributes:
        inputs: nodes of workflows that wait for outputs.
    """

    def __init__(
        self, worker: WorkerState, runner_pool: RunnerPool, lines: Lines, endings: Endings, demand: Demand
    ) -> None:
        self.inputs = Inputs(worker.keys)
        self._worker = worker
        self._pool = runner_pool
        self._lines = lines
        self._endings = endings
        self._demand = demand
        # Kind and plan of jobs without options of their own, by task: every job passes here.
        self._plans: dict[str, tuple[Kind, Plan]] = {}
        # Until when what comes back of a task goes on to the server.
        self._refused: dict[str, float] = {}

    @property
    def busy(self) -> bool:
        """Whether jobs run or are about to, or ends are to be settled."""
        endings = self._endings
        return bool(self._pool.running or self._lines.waiting or endings.batch or self.inputs or endings.growth)

    # -- handing out ------------------------------------------------------------------------------------------------

    def start(self, claimed: consume.Claimed) -> None:
        """Hand out what a claim brought and may start now."""
        if any(map(special, claimed.jobs)):
            self.hand_out([claim for claim in claimed.jobs if self._startable(claim, claimed.now)])
            # The outputs that they wait for may be known from the batch before.
            self.feed()
        else:
            self.hand_out(claimed.jobs)

    def feed(self) -> None:
        """Hand out the nodes whose inputs are complete."""
        fed: list[Claim] = []
        for inputs, claims in self.inputs.ready():
            if not (text := too_large(inputs)):
                fed += [msgspec.structs.replace(claim, inputs=inputs) for claim in claims]
                continue
            for claim in claims:
                error = JobError(type="PayloadTooLarge", message=text, attempt=claim.attempt)
                self._endings.end_with(claim, Failed, error)
        self.hand_out(fed)

    def returned(self, returned: Returned) -> None:
        """Work came back from a runner: it goes to another one, or waits where its strategy wants it."""
        self._endings.ended(returned.ends)
        back = [start for start in returned.back if not self._released(start.claim)]
        bound = [start for start in back if start.bound] if self._worker.phase == "working" else []
        if bound:
            self._lines.put_back(bound)
        self.hand_out([start.claim for start in back if not (bound and start.bound)])

    def recall(self, tasks: set[str]) -> None:
        """Calls of these tasks were refused: their jobs that have not begun go back to the server.

        Only the server knows which of them have the limit, and the value, that is closed now. It gives the others out
        again.
        """
        self._refused |= dict.fromkeys(tasks, self._worker.now + RECALL)
        self._pool.recall(tasks)
        for claim, _ in self._lines.take(tasks):
            if not self._released(claim):
                self.hand_out([claim])
        tasks.clear()

    def _released(self, claim: Claim) -> bool:
        """Whether a job that has not begun goes back to the server, since a call of its task was refused."""
        if claim.queue[0] == "@" or self._refused.get(claim.task, 0.0) < self._worker.now:
            return False
        self._endings.end(claim, Released())
        return True

    def hand_out(self, claims: list[Claim]) -> None:
        """Hand claims out; what fits nowhere goes back to the server, where another worker may take it."""
        if refused := self.place(claims):
            self.hand_back(refused)

    def place(self, claims: Iterable[Claim]) -> list[Refused]:
        """Hand claims out.

        Returns:
            what fits nowhere, to be handed back.
        """
        worker, assignment, refused = self._worker, self._pool.assignment, list[Refused]()
        now, starts, working = worker.now, list[Attempt](), worker.phase == "working" and not worker.fenced
        for claim in claims:
            found = self._plan(claim) if claim.options else self._plans.get(claim.task) or self._plan(claim)
            if found is None:
                continue
            kind, plan = found
            handle = None
            if working:
                strategy = plan.strategy or (self._strategy(claim) if claim.key else worker.options.strategy)
                if strategy == "available" and claim.queue[0] == "@":
                    # It cannot go back to the server, where no other worker would run it.
                    strategy = "least_loaded"
                suspect = claim.crashes > 0
                if suspect and kind in SHARED:
                    handle = self._pool.supply.isolated(kind)
                elif strategy == "available" or (strategy == "hash" and not claim.key):
                    handle = assignment.choose(kind, claim.task, now, suspect=suspect)
                elif self._lines.add((claim, plan), kind, strategy):
                    # At once: a job of any place that comes behind it must find the room that is left.
                    starts += self._lines.serve(now, self.in_time)
                    continue
            if handle is None:
                refused.append((claim, kind))
                continue
            start = Attempt(claim, plan, handle)
            assignment.assign(handle, start, now)
            starts.append(start)
        self._pool.give(starts, now)
        return refused

    def hand_back(self, refused: Iterable[Refused]) -> None:
        """Send claims back for which no runner has room."""
        for claim, kind in refused:
            self._endings.end(claim, Released())
            if self._worker.phase == "working" and not self._worker.fenced:
                self._demand.handed_back(kind)

    def serve(self, now: float) -> None:
        """Hand out what waited for a place that has room by now."""
        self._pool.give(self._lines.serve(now, self.in_time), now)

    def _strategy(self, claim: Claim) -> str:
        """Of a job with a key, whose task does not say. Of an order no other one runs, so that any runner will do."""
        return self._worker.options.strategy if is_ordered(claim.id) else "hash"

    def _plan(self, claim: Claim) -> tuple[Kind, Plan] | None:
        """What kind of runner a job needs, and how to run it; None for one that cannot run here, which ends."""
        task = self._worker.tasks.get(claim.task)
        if task is None:
            text = "job %s wants the unknown task %s: parked until a worker knows it"
            self._worker.actions.log(
                logging.WARNING, text, claim.id, claim.task, code="job.parked", facts=fields_of(claim)
            )
            self._endings.end(claim, Parked())
            return None
        try:
            found = task.kind, task.plan(claim.options)
        except (HeadraceError, msgspec.MsgspecError) as error:
            fault = JobError(type="Corrupt", message=str(error), attempt=claim.attempt)
            self._endings.end_with(claim, Corrupt, fault)
            return None
        if not claim.options:
            self._plans[claim.task] = found
        return found

    # -- what may not start -----------------------------------------------------------------------------------------

    def _startable(self, claim: Claim, now: int) -> bool:
        """Whether the job may start at all; one that may not ends here."""
        if not self._may_start(claim, now):
            return False
        if claim.parents:
            self.inputs.add(claim)
        return not claim.parents

    def in_time(self, waiting: Waiting) -> bool:
        """Whether a job that waited here may still start; one whose time is over ends."""
        return self._may_start(waiting[0], round(self._worker.server_ahead + self._worker.now * 1e6))

    def _may_start(self, claim: Claim, now: int) -> bool:
        ended = before_start(claim, now, microseconds(self._worker.settings.failure_ttl))
        if ended is not None:
            if isinstance(ended, Corrupt):
                self._worker.actions.log(
                    logging.ERROR, "job %s: its record names no task", claim.id, facts={"job": claim.id}
                )
            self._endings.conclude(End(claim, ended))
        return ended is None

    def cancel(self, id: str) -> None:
        """Stop a job that was cancelled, wherever it is here."""
        waiting = self._lines.cancel(id) if self._lines.waiting else None
        if waiting is None:
            self._pool.stops.cancel(id, self._worker.now)
        else:
            error = error_json(JobError(type="Cancelled", message="cancelled before it started"))
            self._endings.conclude(End(waiting[0], Cancelled(error, waiting[1].failure_ttl)))

    def hand_back_waiting(self) -> None:
        """What waits for a place or for its inputs goes back to the server, where another worker may take it."""
        for claim in [*(claim for claim, _ in self._lines.take_all()), *self.inputs.take_all()]:
            self._endings.end(claim, Released())


def special(claim: Claim) -> bool:
    """Whether it is checked before it starts: it expires, takes outputs of other nodes, or names no task."""
    return bool(claim.expires or claim.parents or not claim.task)
