"""What all parts of a dispatcher's core know of their worker: what it was told once, and where it stands now."""

from __future__ import annotations

from typing import Literal

from headrace.model.options import Kind
from headrace.worker.dispatcher.dispatcher_events import Actions
from headrace.worker.dispatcher.starts import Starts
from headrace.worker.dispatcher.store_requests import StoreRequests
from headrace.worker.dispatcher.timers import Timers
from headrace.worker.dispatcher.worker_context import WorkerContext


class WorkerState:
    """One record for each core. The part that is named may write an attribute; all may read it.

    Attributes:
        context, settings, keys, tasks: what it was told once.
        kinds: of its runners.
        options: sizes included, which RemoteControl changes.
        phase: ``working``, ``draining`` (no claims; what runs may finish) or ``left``. Departure's.
        owner: the current incarnation's name; empty before it is registered. Core's, and Departure's where it ends.
        fenced: its runners were stopped since its lease could not be kept. Departure's, and Core's.
        starts: what it holds, to compare with what the store knows; one for each incarnation.
        now: monotonic seconds of this turn. Core's.
        server_ahead: what the server's clock is ahead of ours, microseconds. Claiming's.
        actions, timers: what the parts have decided, and when they must look again.
        requests: what is under way to the store.
    """

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.settings, self.keys, self.tasks = context.settings, context.keys, context.tasks
        self.options = context.options
        self.kinds: tuple[Kind, ...] = tuple(sorted({task.kind for task in context.tasks.values()})) or ("process",)
        self.phase: Literal["working", "draining", "left"] = "working"
        self.owner = ""
        self.fenced = False
        self.starts = Starts()
        self.now = 0.0
        self.server_ahead = 0.0
        self.actions = Actions()
        self.timers = Timers()
        self.requests = StoreRequests(self.actions)
