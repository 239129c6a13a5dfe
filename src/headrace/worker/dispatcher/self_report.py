"""What a worker says of itself with its renewals: sizes, what runners repeat, and what each runs. For people."""

from __future__ import annotations

import logging

from headrace.worker.dispatcher.runners.runner_pool import RunnerPool
from headrace.worker.dispatcher.runners.status import status
from headrace.worker.dispatcher.worker_state import WorkerState


class SelfReport:
    """What has changed and was not said.

    Attributes:
        said: what the last renewal said of the runners.
        shown: the job that somebody asks for, which the next renewal shows.
        resized: whether there are others than were said.
        leaving: whether that it claims no more was said.
    """

    def __init__(self, worker: WorkerState, runner_pool: RunnerPool) -> None:
        self.said, self.shown, self.resized, self.leaving = "", "", False, False
        self._worker = worker
        self._pool = runner_pool

    def begin(self) -> None:
        """A new incarnation has said nothing."""
        self.said = ""
        self._pool.advice.renew()

    def sizes(self) -> list[str]:
        kinds, options = self._worker.kinds, self._worker.options
        runners = " ".join(f"{kind}:{options.runners(kind)}" for kind in kinds)
        return ["runners", runners, "sizes", " ".join(f"{kind}:{options.at_once(kind)}" for kind in kinds)]

    def news(self) -> list[str | int]:
        """What has changed of what this worker says of itself, for a renewal: field, value, ..."""
        advice = self._pool.advice
        for line in advice.lines():
            self._worker.actions.log(logging.WARNING, "%s", line, code="setup.repeated")
        metadata: list[str | int] = ["startup_profile", advice.summary()] if advice.changed else []
        metadata += self.sizes() if self.resized else []
        self.resized = False
        worker = self._worker
        if worker.phase == "draining" and not self.leaving:
            self.leaving = True
            metadata += ["draining", 1]
        runners = status(self._pool.assignment.handles.values(), worker.server_ahead, worker.look, self.shown)
        if runners != self.said:
            self.said = runners
            metadata += ["runner_facts", runners]
        return metadata
