"""Idle load: what a worker without jobs asks of the server. All workers are measured at once, each on its
own server.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from bench.context import Context
from bench.figure import Bar, Figure
from bench.servers import server
from bench.systems import HEADRACE

_SETTLE, _WATCH = 8.0, 20.0


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
        for worker in workers:
            worker.check()
    figures: list[Figure] = []
    for system, work in zip(systems, spent, strict=True):
        bar = Bar("at most", 1.0) if system is HEADRACE else None
        # The second reading is one command of ours.
        figures.append(Figure(f"idle load: {system.name}", (work.commands - 1) / _WATCH, "commands/s", bar=bar))
        figures.append(Figure(f"idle load, trips: {system.name}", (work.trips - 1) / _WATCH, "trips/s"))
    return figures
