"""What the core of a dispatcher is told of its worker once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import msgspec

from headrace.model.limit_rules import NO_LIMITS, DeclaredLimits
from headrace.protocol.keys import Keys
from headrace.protocol.ticks import Row
from headrace.settings import Settings
from headrace.tasks.task import Task
from headrace.worker.dispatcher.ends.job_stats import Tally
from headrace.worker.dispatcher.runners.status import Probe
from headrace.worker.preload.advice import NOTHING, Learned
from headrace.worker.worker_options import WorkerOptions


class WorkerContext(msgspec.Struct, frozen=True):
    """What a core is told of its worker once.

    Attributes:
        place: ``host:pid`` of the worker.
        anchor: the process that started this image and watches it: the first one of a worker that was reloaded; or 0.
        dice: random numbers.
        pid: of the dispatcher's process.
        schedules: those that the application's code declares, as the store takes them.
        learned: what was done before the first fork.
        limits: what its code declares.
        look: finds out what processes runners run, for people.
    """

    keys: Keys
    settings: Settings
    tasks: Mapping[str, Task[..., Any, Any]]
    options: WorkerOptions
    place: str
    pid: int
    dice: Random
    look: Probe
    tally: Tally | None = None
    anchor: int = 0
    schedules: Sequence[Row] = ()
    learned: Learned = NOTHING
    limits: DeclaredLimits = NO_LIMITS
