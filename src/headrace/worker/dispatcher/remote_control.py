"""What others ask of a worker: its supervisor with messages, and clients of the store with what they write to it."""

from __future__ import annotations

import logging

from headrace.errors import OptionsError
from headrace.model.options import KINDS, Kind
from headrace.worker.dispatcher.dispatcher_events import CALLED, HURRY
from headrace.worker.dispatcher.duties.maintenance import Maintenance
from headrace.worker.dispatcher.placement import Placement
from headrace.worker.dispatcher.self_report import SelfReport
from headrace.worker.dispatcher.stack_requests import StackRequests
from headrace.worker.dispatcher.worker_state import WorkerState
from headrace.worker.messages import Size
from headrace.worker.worker_options import SHARED


class RemoteControl:
    """Does what is asked, or says why not.

    Attributes:
        stacks: requests for the stacks of runners.
    """

    def __init__(self, worker: WorkerState, placement: Placement, maintenance: Maintenance, report: SelfReport) -> None:
        self._worker = worker
        self._pool, self._lines, self._demand = placement.pool, placement.lines, placement.demand
        self._placement, self._maintenance = placement, maintenance
        self._report = report
        self.stacks = StackRequests(worker, placement.pool)

    def grow(self, by: int) -> None:
        """Have so many runners more, or fewer."""
        main: Kind = next(kind for kind in KINDS if kind in self._worker.kinds)
        self._scale(main, self._worker.options.at_once(main) + by)

    def mailed(self, text: str) -> None:
        """What others wrote.

        * Questions: ``show:JOB``, answered by a renewal out of turn, whose facts show that job; ``stacks:REQUEST``.
        * News: ``parked:TASK``; ``closed:TOKEN:GATE``: a call was refused, and the gate was closed after this token.
        * Wishes: ``scale:KIND:SIZE``; the id of a job to cancel.
        """
        verb, _, rest = text.partition(":")
        kind, _, size = rest.partition(":")
        if text == CALLED:
            self._demand.call()
        elif text == HURRY:
            self._maintenance.renewal.renew_soon()
        elif verb == "show":
            self._report.shown = rest
            self._maintenance.renewal.renew_soon()
        elif verb == "stacks":
            self.stacks.ask(rest)
        elif verb == "parked" and rest in self._worker.tasks:
            self._maintenance.unparking.parked.add(rest)
        elif verb == "closed" and kind.isdecimal():
            self._placement.close([size], int(kind))
        elif verb != "scale":
            self._maintenance.renewal.cancels.append(text)
        elif kind in self._worker.kinds and size.isdecimal():
            self._scale(kind, int(size))
        else:
            self._worker.actions.log(logging.WARNING, "cannot do what was asked of this worker: %.100r", text)

    def _scale(self, kind: Kind, size: int) -> None:
        """Another process wishes so many jobs of a kind at once: those that come after us keep to it."""
        worker = self._worker
        try:
            worker.options.resized(kind, size)
        except OptionsError as error:
            worker.actions.log(logging.WARNING, "not resized: %s", error)
            return
        worker.actions.add(Size(kind, size))
        self.resize(kind, size)

    def resize(self, kind: Kind, size: int) -> None:
        """Run so many jobs of a kind at once from now on; what is removed finishes what it runs."""
        worker = self._worker
        if worker.phase != "working" or size == worker.options.at_once(kind):
            return
        text = "%s: %d at once, %d before"
        worker.actions.log(logging.INFO, text, kind, size, worker.options.at_once(kind))
        worker.options = worker.options.resized(kind, size)
        if kind not in worker.kinds:
            return
        if kind in SHARED:
            self._pool.supply.renew(kind)
        else:
            for place in self._pool.supply.resize(kind, size):
                self._lines.vacate(place)
        self._report.resized = True
        self._maintenance.renewal.renew_soon()
