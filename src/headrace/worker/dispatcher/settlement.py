"""Agreement of a dispatcher and the store about its starts: their ends and notes in batches, and both sides' claims.
Produces calls, which travel before other requests; sends nothing itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from headrace.protocol import consume
from headrace.protocol.consume import Held, Settled
from headrace.worker.dispatcher.assignment import Assignment
from headrace.worker.dispatcher.claim_demand import ClaimDemand
from headrace.worker.dispatcher.dispatcher_events import Step
from headrace.worker.dispatcher.endings import SETTLE_MOST, Endings
from headrace.worker.dispatcher.maintenance import Maintenance
from headrace.worker.dispatcher.placement import Placement
from headrace.worker.dispatcher.worker_state import NEVER, Desk, Repair, Rows, Starts, Worker, compare
from headrace.worker.dispatcher.workflow_growth import Inputs

# While every runner still has work ahead, ends gather for this long (seconds), so that a trip carries many.
GATHER = 0.001
NOTES_EVERY = 0.25
# Characters of log lines in one call, about, so that it holds up no server; and as many notes as ends.
NOTES_MOST = 4 << 20


class Settlement:
    def __init__(
        self,
        worker: Worker,
        desk: Desk,
        assignment: Assignment,
        endings: Endings,
        demand: ClaimDemand,
        inputs: Inputs,
        maintenance: Maintenance,
    ) -> None:
        self._worker, self._desk, self._requests = worker, desk, desk.requests
        self._assignment, self._notes = assignment, desk.notes
        self._endings, self._demand, self._inputs = endings, demand, inputs
        self._maintenance, self._renewal, self._promotion = maintenance, maintenance.renewal, maintenance.promotion

    def steps(self, now: float, *, claims: bool) -> list[Step]:
        """What is due: notes before ends. A claim that is made in the same trip must find the ends told."""
        if self._endings and (claims or self._gathered(now)):
            return self.all()
        timers = self._desk.timers
        if self._notes and timers.at("notes") == NEVER:
            timers.set("notes", now + NOTES_EVERY)
        return self._notes_due() if timers.due("notes", now) else []

    def all(self) -> list[Step]:
        return [*self._notes_due(), self._settle()]

    def _settle(self) -> Step:
        worker, mine = self._worker, self._desk.starts
        number, batch = self._requests.next_number(), self._endings.take()
        again = [outcome.amount for outcome, _ in batch if outcome.kind in ("retry", "snoozed", "limited")]
        call = self._endings.settle(number, batch)
        mine.ended(batch, call, number, worker.now)

        def settled(reply: consume.Settled) -> None:
            mine.settled = number
            if again:
                # No claim need follow that would tell: without this a retry waits for the next renewal.
                self._promotion.expect(worker.now + min(again) / 1e6)
            if not reply.repeated:
                for outcome, claim in batch:
                    if claim.facts and outcome.kind == "succeeded" and claim.id not in reply.stale:
                        self._inputs.learn(claim, outcome.data)
                self._inputs.feed()
            if reply.stale:
                text = "refused, since a newer start owns it or the server lost it: %s"
                worker.actions.log(logging.WARNING, text, ", ".join(reply.stale[:10]), code="outcome.refused")
            self._settled(reply)

        return call, settled

    def settled_again(self, reply: consume.Settled) -> None:
        self._settled(reply)
        # It tells when what became scheduled is due, and what else there is to do.
        self._renewal.renew_soon()

    def _settled(self, reply: consume.Settled) -> None:
        worker = self._worker
        self._endings.since = worker.now
        if worker.options.burst:
            # A worker that leaves when the queues are empty does not sleep on them: it asks with each trip.
            self._demand.may_wait()
        self._maintenance.settled(reply.kept, reply.bytes, reply.chores, worker.now)

    def _gathered(self, now: float) -> bool:
        until = self._endings.since + GATHER
        if now >= until or self._endings.urgent or not self._assignment.least_held:
            return True
        self._desk.timers.set("gather", until)
        return False

    def _notes_due(self) -> list[Step]:
        """All of them: what a job said last must not come after its end."""
        notes, desk = self._notes, self._desk
        if not notes:
            return []
        desk.timers.clear("notes")
        batches: list[list[consume.Note]] = []
        room = 0
        for note in notes.values():
            if room <= 0:
                batches.append([])
                room = NOTES_MOST
            batches[-1].append(note)
            room -= NOTES_MOST // SETTLE_MOST + sum(map(len, note.lines))
        notes.clear()
        number = self._requests.next_number
        return [(consume.note(desk.keys, desk.owner, batch, request=number()), lambda _: None) for batch in batches]


PAGE = 500


class Reconciler:
    def __init__(
        self, worker: Worker, desk: Desk, endings: Endings, placement: Placement, settlement: Settlement
    ) -> None:
        self._worker, self._desk = worker, desk
        # Before all others, one list after the other.
        self._ahead = desk.requests.send_first
        self._endings, self._placement, self._settlement = endings, placement, settlement

    def check(self) -> Step:
        """Ask what the store knows. Cost: a page for each 500 claims."""
        return self._page(self._desk.starts.view(), [])

    def outrun(self, promise: int) -> list[Step]:
        """Let no new token be less than any of a server that failed: the clock of the next one may be behind."""
        desk = self._desk
        # Nothing was claimed yet where the clock is not known.
        newest = desk.server_time(self._worker.now) if desk.server_ahead else 0
        return [(consume.restore(desk.keys, desk.owner, [("", newest)], promise), lambda _: None)]

    def _page(self, view: Starts, found: Rows) -> Step:
        call = consume.holds(self._desk.keys, self._desk.owner, found[-1][1] if found else 0, PAGE)
        return call, lambda reply: self._read(view, found, reply)

    def _read(self, view: Starts, found: Rows, reply: Held | None) -> None:
        if reply is None:
            # The store does not know this incarnation any more, which a renewal will tell.
            return
        found += reply.starts
        if len(reply.starts) == PAGE:
            self._ahead([self._page(view, found)])
        elif repair := compare(view, msgspec.structs.replace(reply, starts=found)):
            self._repair(repair)

    def _repair(self, repair: Repair) -> None:
        """Do again what the server forgot, in its order: a settle may be why the job of a later start was ready.
        All starts are tried before the first settle, too, so that no other worker takes their jobs meanwhile.
        """
        text = "the server lost data, which this worker repairs: %d claims are stored again, %d batches of outcomes "
        text += "are sent again, %d unknown jobs are returned"
        counts = len(repair.restore), len(repair.again), len(repair.unknown)
        self._worker.actions.log(logging.WARNING, text, *counts, code="store.lost_data")
        first, later = repair.history()
        rest = repair.restore[len(first) :]
        for step in self._restore(first, self._restored) + self._restore(rest, lambda _: None):
            self._ahead([step])
        told = self._told_again(len(later))
        for sent, starts in later:
            # A request each: no settle overtakes one that the server refuses.
            self._ahead([(sent.call, told), *self._restore(starts, self._restored)])
        for id, token in repair.unknown:
            self._endings.hand_back(id, token)

    def _restore(self, starts: Rows, read: Callable[[consume.Restored], None]) -> list[Step]:
        keys, owner = self._desk.keys, self._desk.owner
        return [(consume.restore(keys, owner, starts[n : n + PAGE]), read) for n in range(0, len(starts), PAGE)]

    def _told_again(self, left: int) -> Callable[[Settled], None]:
        """Say once what all settles were refused: after a failover they may be thousands."""
        refused = list[str]()

        def settled(reply: Settled) -> None:
            nonlocal left
            left -= 1
            refused.extend(reply.stale)
            if refused and not left:
                text = "refused, since a newer start owns them or the server lost them: %d jobs, such as %s"
                self._worker.actions.log(
                    logging.WARNING, text, len(refused), ", ".join(refused[:10]), code="outcome.refused"
                )
            self._settlement.settled_again(reply)

        return settled

    def _restored(self, reply: consume.Restored) -> None:
        held = set(self._desk.starts.held.values())
        self._desk.starts.forget([*reply.others, *reply.gone])
        for id in reply.others:
            if id in held:
                text = "stopping job %s: the server lost its start, and it starts again"
                self._worker.actions.log(logging.WARNING, text, id, facts={"job": id}, code="job.lost_start")
                self._placement.cancel(id)
