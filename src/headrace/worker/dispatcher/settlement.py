"""Tells the store how starts ended and what running jobs say, in batches, and learns from its replies."""

from __future__ import annotations

import logging

from headrace.protocol import consume, settle_calls
from headrace.worker.dispatcher.dispatcher_events import Step
from headrace.worker.dispatcher.duties.maintenance import Maintenance
from headrace.worker.dispatcher.endings import SETTLE_MOST, Outcomes
from headrace.worker.dispatcher.placement import Placement
from headrace.worker.dispatcher.timers import NEVER
from headrace.worker.dispatcher.worker_state import WorkerState

# While every runner still has work ahead, ends gather for this long (seconds), so that a trip carries many.
GATHER = 0.001
NOTES_EVERY = 0.25
# Characters of log lines in one call, about, so that it holds up no server; and as many notes as ends.
NOTES_MOST = 4 << 20


class Settlement:
    """What is due of ends and notes."""

    def __init__(self, worker: WorkerState, placement: Placement, maintenance: Maintenance) -> None:
        self._worker, self._requests = worker, worker.requests
        self._pool, self._endings, self._demand = placement.pool, placement.endings, placement.demand
        self._placement, self._maintenance = placement, maintenance

    def steps(self, now: float, *, claims: bool) -> list[Step]:
        """What is due: notes before ends.

        Args:
            claims: a claim is made in the same trip, which must find the ends told.
        """
        if self._endings and (claims or self._gathered(now)):
            return [*self._notes(), self.settle()]
        return self._notes() if self._pool.notes and self._noted(now) else []

    def settle(self) -> Step:
        """The call that tells the next batch of ends."""
        worker, requests = self._worker, self._requests
        requests.number += 1
        number, batch, mine = requests.number, self._endings.take(), worker.starts
        again = [outcome.amount for outcome, _ in batch if outcome.kind in ("retry", "snoozed", "limited")]
        call = self._endings.settle(number, batch)
        mine.ended(batch, call, number, worker.now)

        def settled(reply: settle_calls.Settled) -> None:
            mine.settled = number
            if again:
                # No claim need follow that would tell: without this a retry waits for the next renewal.
                self._maintenance.promotion.expect(worker.now + min(again) / 1e6)
            if not reply.repeated:
                self._learn(batch, reply.stale)
            if reply.stale:
                text = "refused, since a newer start owns it or the server lost it: %s"
                worker.actions.log(logging.WARNING, text, ", ".join(reply.stale[:10]))
            self._settled(reply)

        return call, settled

    def settled_again(self, reply: settle_calls.Settled) -> None:
        """Read the answer to a settle that the store had forgotten and was sent again."""
        self._settled(reply)
        # It tells when what became scheduled is due, and what else there is to do.
        self._maintenance.renewal.renew_soon()

    def _settled(self, reply: settle_calls.Settled) -> None:
        worker = self._worker
        self._endings.since = worker.now
        if worker.options.burst:
            # A worker that leaves when the queues are empty does not sleep on them: it asks with each trip.
            self._demand.may_wait()
        self._maintenance.settled(reply.kept, reply.bytes, reply.chores, worker.now)

    def _learn(self, batch: Outcomes, stale: list[str]) -> None:
        """What nodes of workflows returned is known here from now on."""
        refused, inputs = set(stale), self._placement.inputs
        for outcome, claim in batch:
            if claim.facts and outcome.kind == "succeeded" and claim.id not in refused:
                inputs.learn(claim, outcome.data)
        if inputs:
            self._placement.feed()

    def _gathered(self, now: float) -> bool:
        """Whether ends have gathered for long enough; they may while every runner has work ahead."""
        until = self._endings.since + GATHER
        if now >= until or self._endings.urgent or not self._pool.assignment.least_held:
            return True
        self._worker.timers.set("gather", until)
        return False

    def _noted(self, now: float) -> bool:
        """Whether what running jobs say of themselves is to be stored now."""
        timers = self._worker.timers
        if timers.at("notes") == NEVER:
            timers.set("notes", now + NOTES_EVERY)
        return timers.due("notes", now)

    def _notes(self) -> list[Step]:
        """All of them: what a job said last must not come after its end."""
        notes, worker, requests = self._pool.notes, self._worker, self._requests
        if not notes:
            return []
        worker.timers.clear("notes")
        batches: list[list[consume.Note]] = []
        room = 0
        for note in notes.values():
            if room <= 0:
                batches.append([])
                room = NOTES_MOST
            batches[-1].append(note)
            room -= NOTES_MOST // SETTLE_MOST + sum(map(len, note.lines))
        notes.clear()
        steps: list[Step] = []
        for batch in batches:
            requests.number += 1
            steps.append((consume.note(worker.keys, worker.owner, batch, request=requests.number), lambda _: None))
        return steps
