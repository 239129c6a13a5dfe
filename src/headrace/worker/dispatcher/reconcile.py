"""Makes a dispatcher and the store agree on what it holds: after each connection, and when their counts differ.

Produces calls, which travel before what else was to be sent; sends nothing itself. What is decided is in starts.py.
"""

from __future__ import annotations

import logging

import msgspec

from headrace.protocol import settle_calls
from headrace.protocol.script import Call
from headrace.protocol.settle_calls import Held, Settled
from headrace.worker.dispatcher.dispatcher_events import Step
from headrace.worker.dispatcher.placement import Placement
from headrace.worker.dispatcher.settlement import Settlement
from headrace.worker.dispatcher.starts import Repair, Rows, Starts, compare
from headrace.worker.dispatcher.worker_state import WorkerState

PAGE = 500
# Settles that go out together.
TOGETHER = 8


class Reconciler:
    """Compares, and repairs."""

    def __init__(self, worker: WorkerState, placement: Placement, settlement: Settlement) -> None:
        self._worker = worker
        # Before all others, one list after the other.
        self._ahead = worker.requests.send_first
        self._placement, self._endings = placement, placement.endings
        self._settlement = settlement

    def look(self) -> Step:
        """Ask what the store knows. Cost: a page for each 500 claims."""
        return self._page(self._worker.starts.view(), [])

    def _page(self, view: Starts, found: Rows) -> Step:
        call = settle_calls.holds(self._worker.keys, self._worker.owner, found[-1][1] if found else 0, PAGE)
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
        self._worker.actions.log(
            logging.WARNING, "the server lost data, which this worker repairs: "
            "%d claims are stored again, %d batches of outcomes are sent again, %d unknown jobs are returned",
            len(repair.restore), len(repair.again), len(repair.unknown),
        )  # fmt: skip
        for n in range(0, len(repair.restore), PAGE):
            rows = repair.restore[n : n + PAGE]
            self._ahead([(settle_calls.restore(self._worker.keys, self._worker.owner, rows), self._restored)])
        self._settle_again(repair.again)
        for id, token in repair.unknown:
            self._endings.hand_back(id, token)

    def _settle_again(self, calls: list[Call[Settled]]) -> None:
        """Send settles again, and say once what all of them were refused: after a failover they may be thousands."""
        left, refused = len(calls), list[str]()

        def settled(reply: Settled) -> None:
            nonlocal left
            left -= 1
            refused.extend(reply.stale)
            if refused and not left:
                text = "refused, since a newer start owns them or the server lost them: %d jobs, such as %s"
                self._worker.actions.log(logging.WARNING, text, len(refused), ", ".join(refused[:10]))
            self._settlement.settled_again(reply)

        for n in range(0, len(calls), TOGETHER):
            self._ahead([(call, settled) for call in calls[n : n + TOGETHER]])

    def _restored(self, reply: settle_calls.Restored) -> None:
        """What another start has, or will have, stops here; a job whose record is gone runs to its end."""
        held = set(self._worker.starts.held.values())
        self._worker.starts.forget([*reply.others, *reply.gone])
        for id in reply.others:
            if id in held:
                text = "stopping job %s: the server lost its start, and it starts again"
                self._worker.actions.log(logging.WARNING, text, id, facts={"job": id})
                self._placement.cancel(id)
