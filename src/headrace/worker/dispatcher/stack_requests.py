"""Stacks on demand: somebody asks, each runner's interpreter writes them to its stderr, and the store is told.

Owns the requests that are under way. A runner that answers late, or not at all, holds up nobody.
"""

from __future__ import annotations

import msgspec

from headrace.model.stacks import MOST, MOST_EACH, RunnerStacks, WorkerStacks
from headrace.protocol import operations
from headrace.worker.dispatcher.dispatcher_events import Capture, StackHeard, Step
from headrace.worker.dispatcher.runners.runner_pool import RunnerPool
from headrace.worker.dispatcher.worker_state import WorkerState
from headrace.worker.messages import Signal

# Seconds that runners have to write their stacks. Stacks that come later, for LATE seconds more, stay out of the log,
# where they would look like a fault.
WAIT, LATE = 0.3, 10.0
_TIMER = "stacks"


class StackRequests:
    """One reading is under way at most. Requests that come meanwhile are answered by it, too."""

    def __init__(self, worker: WorkerState, runner_pool: RunnerPool) -> None:
        self._worker = worker
        self._pool = runner_pool
        self._requests: list[str] = []
        self._heard: dict[int, bytearray] = {}

    def ask(self, request: str) -> None:
        """Have each runner write its stacks, unless they were told to just now."""
        worker = self._worker
        self._requests.append(request[:64])
        if len(self._requests) > 1:
            return
        for handle in self._pool.assignment.handles.values():
            if not handle.gone:
                worker.actions.add(Capture(handle.number, worker.now + WAIT + LATE))
                worker.actions.add(Signal(handle.number, "stacks"))
        worker.timers.set(_TIMER, worker.now + WAIT)

    def heard(self, event: StackHeard) -> None:
        if not self._requests:
            # Too late.
            return
        text = self._heard.setdefault(event.runner, bytearray())
        if len(text) < MOST_EACH:
            text += event.text

    def steps(self, now: float) -> list[Step]:
        """What is told, once the time is over."""
        worker = self._worker
        if not self._requests or not worker.timers.due(_TIMER, now):
            return []
        worker.timers.clear(_TIMER)
        handles = [one for one in self._pool.assignment.handles.values() if not one.gone]
        each = min(MOST_EACH, MOST // max(1, len(handles)))
        rows: list[RunnerStacks] = []
        for handle in handles:
            first = next(iter(handle.starts.values()), None)
            text = bytes(self._heard.get(handle.number, b""))[:each].decode("utf-8", "replace")
            rows.append(
                RunnerStacks(
                    kind=handle.kind, place=handle.place.id if handle.place else -1, pid=worker.look(handle)[0],
                    job=first.claim.id if first else "", task=first.claim.task if first else "", text=text.strip(),
                )
            )  # fmt: skip
        answer = msgspec.json.encode(WorkerStacks(requests=self._requests, runners=rows)).decode()
        self._requests = []
        self._heard.clear()
        return [(operations.tell_stacks(worker.keys, worker.owner, answer), lambda _: None)]
