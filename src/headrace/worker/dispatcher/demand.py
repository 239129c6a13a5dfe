"""What a worker wants of its queues at this moment, from what it knows of them and what has room. Decides; no I/O.

Owns what is known of the queues (admission.py decides what follows from it), the kinds of runners that had no room when
a job came, and the broadcasts that were announced and not claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.model.options import Kind
from headrace.protocol import claim_calls
from headrace.worker.dispatcher.admission import ANEW_AFTER, LOOK_EVERY, ClaimRequest, Known, awaited, want
from headrace.worker.dispatcher.runners.runner_pool import RunnerPool
from headrace.worker.dispatcher.worker_state import WorkerState


class Demand:
    """What is wanted now.

    Attributes:
        known: what the answers to claims tell of the queues.
        asking: number of the claim that asks for what was broadcast; 0: none does.
    """

    def __init__(self, worker: WorkerState, runner_pool: RunnerPool) -> None:
        self._pool = runner_pool
        self._kinds = worker.kinds
        self._timers = worker.timers
        self.known = Known(frozenset(self._kinds))
        # Kinds for which no runner had room when a job came, whatever had been reckoned.
        self._refused = set[Kind]()
        # The tasks of each kind, for claims that pass over some.
        self._tasks: dict[Kind, list[str]] = {kind: [] for kind in self._kinds}
        for task in worker.tasks.values():
            self._tasks[task.kind].append(task.name)
        self.asking = 0
        # Broadcasts announced so far; the last one whose jobs are all claimed; the last one that a claim asks for.
        self._calls = self._answered = self._asked = 0
        self._timers.set("look", 0.0)

    def begin(self) -> None:
        """A new incarnation knows nothing of the queues."""
        self.known = Known(frozenset(self._kinds))
        self.asking = 0

    def may_wait(self) -> None:
        """Jobs of every kind may have come."""
        self.known = self.known.may_wait(self._kinds)

    def handed_back(self, kind: Kind) -> None:
        """A job came for which no runner had room. While none may start anything no end of a job would lift this."""
        self._refused.add(kind)
        self.known = self.known.handed_back(kind)

    def answered(self, wanted: ClaimRequest, summary: claim_calls.ClaimSummary, now: float, *, woken: bool) -> None:
        """A claim was answered; ``woken``: it ended a sleep, which a queue had ended."""
        self.known = self.known.answered(wanted, summary.brought, summary.looked)
        if self.known.beyond:
            self._timers.set("look", now + LOOK_EVERY)
        if wanted.cursors and not wanted.now and woken:
            self._timers.set("anew", min(self._timers.at("anew"), now + ANEW_AFTER))

    def wanted(self, now: float, most: int, coming: int, parked: Sequence[Kind], *, ask: bool) -> ClaimRequest | None:
        """What is wanted now; None: nothing.

        Args:
            most: jobs that may be claimed in all.
            coming: jobs that are here and that no runner has yet.
            parked: kinds of which parked jobs may be moved in the same trip.
            ask: there may be jobs of which no claim told.
        """
        if self._timers.due("anew", now):
            self.known = self.known.looked_anew()
            self._timers.clear("anew")
        known = self.known.may_wait(parked) if parked else self.known
        return want(known, self.rooms(now, coming), most, ask=ask, look=now >= self._timers.at("look"))

    def rooms(self, now: float, coming: int) -> dict[Kind, int]:
        """How many jobs of each kind may be claimed, when so many are here that no runner has yet."""
        if self._pool.supply.freed:
            self._refused -= self._pool.supply.freed
            self._pool.supply.freed.clear()
        rooms = self._pool.assignment.rooms(now)
        return {kind: max(0, room - coming) for kind, room in rooms.items() if kind not in self._refused}

    def passing(self, wanted: ClaimRequest) -> list[tuple[Kind, int, Sequence[str]]]:
        """What a claim passes over: crowded kinds, how many of each it may bring, and their tasks."""
        return [(kind, most, self._tasks[kind]) for kind, most in wanted.passing.items()]

    def awaited(self, queues: Iterable[str], paused: frozenset[str]) -> list[str]:
        """What a sleep listens to."""
        return awaited(queues, paused, self._kinds, self.known)

    # -- broadcasts -------------------------------------------------------------------------------------------------

    def call(self) -> None:
        """Something was broadcast to this worker."""
        self._calls += 1

    @property
    def called(self) -> bool:
        """Whether something may have been broadcast to us that no claim under way asks for."""
        return self._calls != self._answered and not self.asking

    def ask(self, number: int) -> None:
        """The claim of this number asks for what was broadcast."""
        self.asking, self._asked = number, self._calls

    def told(self, *, some: bool) -> None:
        """The claim that asked for what was broadcast was read.

        Args:
            some: it brought a job that was broadcast. While it does there may be more.
        """
        if not some:
            self._answered = self._asked
        self.asking = 0
