"""Doctor: the same drain beside a walk of ``headrace doctor keyspace`` over a large store, and without it, in turn."""

from __future__ import annotations

import contextlib
import sys
import time
from statistics import median

from bench import tally
from bench.context import Context
from bench.figure import Bar, Figure
from bench.processes import ROOT, running, wait_until
from bench.servers import Server, server
from bench.systems import HEADRACE
from headrace import Headrace

# Jobs that wait in a queue that no worker serves, jobs of one drain, and the part left out at both ends.
_STORED, _JOBS, _EDGE = 1_000_000, 60_000, 0.1
_PAIRS = 5


def _drained(context: Context, target: Server, jobs: int, *, beside: bool) -> tuple[float, float, float]:
    """Jobs a second, and microseconds of processor time of the worker and of the server a job."""
    ran = tally.ran(target.tally)
    context.produce(HEADRACE, target, "bulk", jobs)
    env = {"HEADRACE_URL": target.url, "PYTHONPATH": str(ROOT)}
    doctor = running([sys.executable, "-m", "headrace", "doctor", "keyspace", "--json"], env)
    with doctor if beside else contextlib.nullcontext() as walk, context.worker(HEADRACE, target) as worker:
        wait_until(lambda: tally.ran(target.tally) - ran > jobs * _EDGE, "the first jobs", 120)
        first, began = tally.ran(target.tally), time.perf_counter()
        work, spent = target.work(), worker.cpu()
        wait_until(lambda: tally.ran(target.tally) - ran > jobs * (1 - _EDGE), "the last jobs", 300, pause=0.02)
        count, took = tally.ran(target.tally) - first, time.perf_counter() - began
        work, spent = target.work() - work, (worker.cpu() or 0.0) - (spent or 0.0)
        if walk is not None:
            walk.check()
        wait_until(lambda: tally.ran(target.tally) - ran >= jobs, "the end", 60)
    return count / took, 1e6 * spent / count, work.cpu / count


def run(context: Context) -> list[Figure]:
    """The drain beside the doctor over the drain alone, medians of pairs."""
    with server() as target:
        context.say(f"doctor: storing {context.scaled(_STORED):,} jobs")
        with Headrace(target.url) as app:
            noop = app.by_name("bench.app.noop", queue="quiet")
            app.enqueue_many(noop.job() for _ in range(context.scaled(_STORED)))
        pairs: list[tuple[tuple[float, ...], ...]] = []
        for n in range(_PAIRS):
            context.say(f"doctor: pair {n + 1} of {_PAIRS}")
            order = (True, False) if n % 2 else (False, True)
            told = {beside: _drained(context, target, context.scaled(_JOBS), beside=beside) for beside in order}
            pairs.append((told[True], told[False]))
    rows: list[tuple[str, str, Bar | None]] = [
        ("rate", "jobs/s", Bar("at least", 0.94, "ratio")),
        ("worker CPU per job", "µs", None),
        ("server CPU per job, the doctor's included", "µs", None),
    ]
    return [
        Figure(
            f"drain beside the doctor, {name}", median(one[n] for one, _ in pairs), unit,
            "without", median(other[n] for _, other in pairs), bar,
        )
        for n, (name, unit, bar) in enumerate(rows)
    ]  # fmt: skip
