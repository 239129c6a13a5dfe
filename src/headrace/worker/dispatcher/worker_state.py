"""What all parts of a dispatcher's core know of their worker: what it was told once, and where it stands now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Literal

from headrace.model.limit_rules import NO_LIMITS, DeclaredLimits
from headrace.model.options import Kind
from headrace.protocol.keys import Keys
from headrace.protocol.ticks import Row
from headrace.settings import Settings
from headrace.tasks.task import Task
from headrace.worker.dispatcher.dispatcher_events import Actions
from headrace.worker.dispatcher.ends.job_stats import Tally
from headrace.worker.dispatcher.runners.status import Probe
from headrace.worker.dispatcher.starts import Starts
from headrace.worker.dispatcher.store_requests import StoreRequests
from headrace.worker.dispatcher.timers import Timers
from headrace.worker.preload.advice import NOTHING, Learned
from headrace.worker.worker_options import WorkerOptions


class WorkerState:
    """One record for each core. The part that is named may write an attribute; all may read it.

    Attributes:
        keys, settings, tasks: told once, as are those down to ``limits``.
        options: sizes included, which RemoteControl changes.
        place: ``host:pid`` of the worker.
        pid: of the dispatcher's process.
        dice: random numbers.
        look: finds out what processes runners run, for people.
        anchor: the process that started this image and watches it: the first one of a worker that was reloaded; or 0.
        schedules: those that the application's code declares, as the store takes them.
        learned: what was done before the first fork.
        limits: what its code declares.
        kinds: of its runners.
        phase: ``working``, ``draining`` (no claims; what runs may finish) or ``left``. Departure's.
        owner: the current incarnation's name; empty before it is registered. Core's, and Departure's where it ends.
        fenced: its runners were stopped since its lease could not be kept. Departure's, and Core's.
        starts: what it holds, to compare with what the store knows; one for each incarnation.
        now: monotonic seconds of this turn. Core's.
        server_ahead: what the server's clock is ahead of ours, microseconds. Claiming's.
        actions, timers: what the parts have decided, and when they must look again.
        requests: what is under way to the store.
    """

    def __init__(
        self,
        keys: Keys,
        settings: Settings,
        tasks: Mapping[str, Task[..., Any, Any]],
        options: WorkerOptions,
        place: str,
        pid: int,
        dice: Random,
        look: Probe,
        *,
        tally: Tally | None = None,
        anchor: int = 0,
        schedules: Sequence[Row] = (),
        learned: Learned = NOTHING,
        limits: DeclaredLimits = NO_LIMITS,
    ) -> None:
        self.keys, self.settings, self.tasks, self.options = keys, settings, tasks, options
        self.place, self.pid, self.dice, self.look = place, pid, dice, look
        self.tally, self.anchor, self.schedules = tally, anchor, schedules
        self.learned, self.limits = learned, limits
        self.kinds: tuple[Kind, ...] = tuple(sorted({task.kind for task in tasks.values()})) or ("process",)
        self.phase: Literal["working", "draining", "left"] = "working"
        self.owner = ""
        self.fenced = False
        self.starts = Starts()
        self.now = 0.0
        self.server_ahead = 0.0
        self.actions = Actions()
        self.timers = Timers()
        self.requests = StoreRequests(self.actions)
