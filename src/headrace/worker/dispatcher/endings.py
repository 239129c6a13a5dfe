"""How starts ended, until the store has it: gathered, logged, counted, and settled in batches. Decides; does no I/O.

Nodes that a start added to its workflow are stored before its end.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

from headrace.model.ended import (
    Cancelled,
    Corrupt,
    Ended,
    EndKind,
    Failed,
    Growing,
    Interrupted,
    RateRefused,
    Retried,
    Succeeded,
)
from headrace.model.ids import OWN_QUEUE
from headrace.model.job import NO_LOG, Claim, JobError, Outcome, StartNote, error_json, first_line
from headrace.model.limit_rules import gates_of
from headrace.protocol import consume
from headrace.protocol.script import Call
from headrace.settings import microseconds
from headrace.worker.dispatcher import job_log
from headrace.worker.dispatcher.dispatcher_events import End, Log
from headrace.worker.dispatcher.job_log import error_of
from headrace.worker.dispatcher.local_queues import LocalQueues
from headrace.worker.dispatcher.worker_state import Desk, Worker
from headrace.worker.dispatcher.workflow_growth import GROWTH, Growth

# Ends of a first start that need no journal.
_SIMPLE: frozenset[EndKind] = frozenset({"succeeded", "grown", "skipped"})
# Ends of claims whose code did not run.
_NO_START: frozenset[EndKind] = frozenset({"released", "parked"})


def starts(batch: Sequence[tuple[Outcome, Claim]]) -> list[StartNote]:
    """The starts of a batch that go into journals: those that did not succeed, and those after one that did not."""
    found = [_note(outcome, claim) for outcome, claim in batch if outcome.kind not in _SIMPLE or claim.journaled]
    return [note for note in found if note is not None]


def _note(outcome: Outcome, claim: Claim) -> StartNote | None:
    if outcome.kind in _NO_START:
        return None
    if outcome.kind == "limited":
        return StartNote(claim.id, claim.ready, outcome.data.decode())
    error = error_of(outcome.kind, outcome.data)
    if error is None:
        return StartNote(claim.id, claim.ready)
    if not error.attempt and outcome.kind in ("cancelled", "corrupt"):
        # It expired, was cancelled or could not be read before its code began.
        return None
    code = -1 if error.exit_code is None else error.exit_code
    return StartNote(claim.id, claim.ready, first_line(error), error.signal or 0, code)


# What one settle may cost the server, in ends of plain jobs; that of a node, with its children, is worth several.
SETTLE_MOST = 600
NODE = 3
# This many bytes of a result count as one end more: a larger call may exceed what the server takes, and on a slow line
# keeps the lease from being renewed.
LARGE = 2048
# What sends a job back to the server; of a broadcast it is an end, since no other worker may run it.
NO_END: frozenset[EndKind] = frozenset({"released", "parked", "snoozed", "limited", "retry"})
_LEFT = error_json(
    JobError(type="Cancelled", message="its worker could not run it: no such task or runner, or it stops")
)
_UNKNOWN = JobError(type="Lost", message="the store and its worker have both forgotten how this start ended")

Outcomes = list[tuple[Outcome, Claim]]


class Endings:
    """What ended and was not sent.

    Attributes:
        finished: how many jobs of the application have run here, or ended without.
        since: since when the oldest of what is gathered waits (monotonic seconds).
        urgent: a job goes back to the server. Until that knows, what claims tell of the queues misses the job.
        growth: starts whose nodes must be stored first.
        on_ends: hears of ends in a worker that serves several shards.
    """

    def __init__(self, worker: Worker, desk: Desk, local_queues: LocalQueues) -> None:
        self.finished = 0
        self.since = 0.0
        self.urgent = False
        self.on_ends: Callable[[list[End]], None] | None = None
        self.growth = Growth(desk.keys, lambda end: self.ended([end]))
        # Gates that are to be closed, since a call was refused; what has not begun of their jobs goes back.
        self._refused = set[str]()
        self._waiting: deque[tuple[Outcome, Claim]] = deque()
        self._keep = microseconds(worker.settings.failure_ttl)
        self._logged = job_log.kinds(worker.settings)
        self._debug = logging.getLogger("headrace.worker").isEnabledFor(logging.DEBUG)
        self._worker, self._desk, self._local_queues = worker, desk, local_queues
        self._job_counts = worker.job_counts

    def __len__(self) -> int:
        return len(self._waiting)

    # -- starts end -------------------------------------------------------------------------------------------------

    def ended(self, ends: list[End]) -> None:
        """These starts ended, or go back to the server; the next jobs of their keys may follow."""
        if self.on_ends is not None:
            self.on_ends(ends)
        queues, add, now = self._local_queues, self._add, self._worker.now
        for end in ends:
            if queues.joined:
                queues.ended(end.claim.number)
            if isinstance(end.ended, Growing):
                self.growth.begin(end)
            else:
                add(end, now)

    def end(self, claim: Claim, ended: Ended) -> None:
        self.ended([End(claim, ended)])

    def end_with(self, claim: Claim, how: type[Failed | Corrupt], error: JobError) -> None:
        self.end(claim, how(error_json(error), self._keep))

    def interrupt_growth(self) -> None:
        """What these starts added is not stored: they run again, without using up a retry."""
        self._desk.requests.forget(*GROWTH)
        for claim in self.growth.drop_all():
            self.end(claim, Interrupted(b"", self._keep))

    def end_unread(self, id: str, token: int, kind: Literal["corrupt", "interrupted"], error: JobError) -> None:
        self._desk.starts.held[token] = id
        outcome = Outcome(id, token, kind, error_json(error), self._keep)
        self._waiting.append((outcome, Claim(id, token, "", 0, "", b"")))

    def hand_back(self, id: str, token: int) -> None:
        """This worker does not know this start. It may have run: one that may start at most once fails."""
        self.end_unread(id, token, "interrupted", _UNKNOWN)

    def _add(self, end: End, now: float) -> None:
        claim, ended = end.claim, end.ended
        if ended.kind in NO_END and claim.queue[0] == "@":
            ended = (Failed if isinstance(ended, Retried) else Cancelled)(ended.data or _LEFT, self._keep)
        kind = ended.kind
        if not self._waiting:
            self.since = now
        if kind in self._logged:
            self._write_line(end, ended)
        if kind == "released":
            self.urgent = True
        elif claim.queue != OWN_QUEUE:
            self.finished += 1
            if self._job_counts is not None:
                self._job_counts.ended(claim, kind, self.since, end.cost)
        if isinstance(ended, Succeeded):
            # Each line is paid for by every job: most succeed.
            stays = ended.ttl or (0 if end.logged or claim.logged else NO_LOG)
            row = Outcome(claim.id, claim.token, kind, ended.result, stays)
        else:
            row = Outcome(claim.id, claim.token, kind, ended.data, ended.amount)
            if isinstance(ended, RateRefused):
                # The sooner its limit is closed, the fewer others are refused.
                self._refused.update(gate for gate in gates_of(claim.lane) if gate.partition(":")[0] == ended.limit)
                self.urgent = True
        self._waiting.append((row, claim))

    def _write_line(self, end: End, ended: Ended) -> None:
        claim, kind = end.claim, ended.kind
        error = job_log.error_of(kind, ended.data)
        facts = job_log.facts(claim, kind, error, end.cost, end.memory)
        extra: dict[str, Any] = {"facts": facts}
        # A crash with a traceback is a fault of Headrace's own code.
        if error is not None and error.traceback and (kind == "crashed" or self._debug):
            extra["traceback"] = error.traceback
        line = job_log.line(claim, kind, error, ended.amount, end.cost, end.memory)
        self._worker.actions.add(Log(job_log.level(kind), "%s", (line,), job_log.CODES[kind], extra))

    # -- the store is told ------------------------------------------------------------------------------------------

    def take_refused(self) -> set[str]:
        refused = self._refused
        if refused:
            self._refused = set[str]()
        return refused

    def take(self) -> Outcomes:
        batch: Outcomes = []
        room, waiting = SETTLE_MOST, self._waiting
        while waiting and room > 0:
            one = waiting.popleft()
            batch.append(one)
            room -= (NODE if one[1].facts else 1) + len(one[0].data) // LARGE
        self.urgent = self.urgent and bool(self._waiting)
        return batch

    def settle(self, number: int, batch: Outcomes) -> Call[consume.Settled]:
        # One that succeeded lines up nowhere, and every job passes here.
        ends = [(outcome, claim.score if outcome.kind != "succeeded" else 0) for outcome, claim in batch]
        desk = self._desk
        return consume.settle(desk.keys, desk.owner, number, ends, self._keep, starts=starts(batch))
