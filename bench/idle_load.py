"""Idle load: what a worker without jobs asks of the server. All workers are measured at once, each on its
own server.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from itertools import compress

from bench.context import Context
from bench.figure import Bar, Figure
from bench.processes import BenchError, Group
from bench.servers import server
from bench.systems import HEADRACE, System

_SETTLE, _WATCH = 8.0, 20.0


def _alive(context: Context, system: System, worker: Group) -> bool:
    """A worker that ended asked for nothing: that is no figure."""
    try:
        worker.check()
    except BenchError as error:
        context.failures.append(f"idle load: {system.name}: {error}")
        return False
    return True


def run(context: Context) -> list[Figure]:
    """Commands and requests a second over 20 s, after 8 s to start up."""
    context.say("idle load of every worker, 28 s")
    systems = context.systems()
    with ExitStack() as stack:
        targets = [stack.enter_context(server()) for _ in systems]
        workers = [stack.enter_context(context.worker(s, t)) for s, t in zip(systems, targets, strict=True)]
        time.sleep(_SETTLE)
        before = [target.work() for target in targets]
        time.sleep(_WATCH)
        spent = [target.work() - was for target, was in zip(targets, before, strict=True)]
        alive = [_alive(context, system, worker) for system, worker in zip(systems, workers, strict=True)]
    figures: list[Figure] = []
    for system, work in compress(zip(systems, spent, strict=True), alive):
        bar = Bar("at most", 1.0) if system is HEADRACE else None
        # The second reading is one command of ours.
        figures.append(Figure(f"idle load: {system.name}", (work.commands - 1) / _WATCH, "commands/s", bar=bar))
        figures.append(Figure(f"idle load, trips: {system.name}", (work.trips - 1) / _WATCH, "trips/s"))
    return figures
