"""Starts that end, each by one way: into the batch that is settled next, or first to what it added to its workflow."""

from __future__ import annotations

from typing import Literal

from headrace.model.ended import Corrupt, Ended, Failed, Growing, Interrupted
from headrace.model.job import Claim, JobError, error_json
from headrace.settings import microseconds
from headrace.worker.dispatcher.dispatcher_events import End
from headrace.worker.dispatcher.duties.workflow_growth import Growth
from headrace.worker.dispatcher.ends.outcome_batch import OutcomeBatch
from headrace.worker.dispatcher.runners.local_queues import LocalQueues
from headrace.worker.dispatcher.worker_state import WorkerState

_UNKNOWN = JobError(type="Lost", message="the store and its worker have both forgotten how this start ended")


class Endings:
    """What ended and is not settled.

    Attributes:
        batch: what is settled next.
        growth: starts whose nodes must be stored first.
    """

    def __init__(self, worker: WorkerState, lines: LocalQueues) -> None:
        self.batch = OutcomeBatch(worker)
        self.growth = Growth(worker.keys, self.conclude)
        self._worker = worker
        self._lines = lines
        self._failure_ttl = microseconds(worker.settings.failure_ttl)

    def ended(self, ends: list[End]) -> None:
        """These starts ended; the next jobs of their keys may follow."""
        lines, add, now = self._lines, self.batch.add, self._worker.now
        for end in ends:
            if lines.joined:
                lines.ended(end.claim.token)
            if isinstance(end.ended, Growing):
                self.growth.begin(end)
            else:
                add(end, now)

    def conclude(self, end: End) -> None:
        """This start ended."""
        self.ended([end])

    def end(self, claim: Claim, ended: Ended) -> None:
        """A start ends that no runner was given."""
        self.conclude(End(claim, ended))

    def end_with(self, claim: Claim, how: type[Failed | Corrupt], error: JobError) -> None:
        """A start that no runner was given ends with an error."""
        self.end(claim, how(error_json(error), self._failure_ttl))

    def interrupt_growth(self) -> None:
        """What these starts added is not stored: they run again, without using up a retry."""
        for claim in self.growth.drop_all():
            self.end(claim, Interrupted(b"", self._failure_ttl))

    def end_unread(self, id: str, token: int, kind: Literal["corrupt", "interrupted"], error: JobError) -> None:
        """End a start of which no more is known than its id and its token."""
        self._worker.starts.held[token] = id
        self.batch.add_unread(id, token, kind, error)

    def hand_back(self, id: str, token: int) -> None:
        """Nobody here knows this start. It may have run: one that may start at most once fails."""
        self.end_unread(id, token, "interrupted", _UNKNOWN)
