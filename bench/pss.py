"""Proportional set size of supervisor, dispatcher and 4 runners with a large application, against one
process with it.

Every page that several processes share counts in parts. Jobs run first, so that the runners have touched
what they touch.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from bench.context import Context
from bench.drain import Sampler
from bench.figure import Bar, Figure
from bench.processes import ROOT, BenchError, running, wait_until
from bench.servers import server
from bench.systems import HEADRACE

_JOBS = 2_000
_WORKER = replace(
    HEADRACE, module="bench.heavy", worker=("-m", "headrace", "worker", "bench.heavy:app", "--processes", "4")
)
_ALONE = "import bench.heavy, signal; print('ready', flush=True); signal.pause()"


def _alone(url: str) -> int | None:
    env = {"HEADRACE_URL": url, "PYTHONPATH": str(ROOT)}
    with running([sys.executable, "-c", _ALONE], env) as process:
        wait_until(lambda: "ready" in process.said(), "the application's import")
        process.check()
        return process.proportional_memory()


def _worker(context: Context) -> tuple[int | None, int | None]:
    with server() as target:
        context.produce(HEADRACE, target, "bulk", _JOBS)
        sampler = Sampler(target, HEADRACE.unsettled)
        with context.worker(_WORKER, target) as worker:
            wait_until(lambda: sampler.left() == 0, "the jobs before the reading", 60, pause=0.05)
            worker.check()
            if len(worker.members()) < 6:
                raise BenchError(f"a supervisor, a dispatcher and 4 runners were expected, not {worker.members()}")
            # The reference runs only after this reading: together they would share the pages of files.
            together = worker.proportional_memory()
        return together, _alone(target.url)


def run(context: Context) -> list[Figure]:
    """Megabytes of the whole worker, beside one process that imported the application."""
    context.say("proportional set size with a large application")
    together, alone = _worker(context)
    name, bar = "memory of a worker with 4 runners and a large application", Bar("at most", 1.6, "ratio")
    if together is None or alone is None:
        return [Figure(name, None, "MB", bar=bar, note="this system does not report proportional set sizes")]
    return [Figure(name, together / 1e6, "MB", "one process", alone / 1e6, bar)]
