"""Shards: what an idle worker, an enqueue and a page of jobs cost over twelve beside one."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median

from bench.context import Context, stamps
from bench.figure import Bar, Figure, percentile
from bench.servers import server
from bench.systems import HEADRACE, System
from headrace import Headrace

_SHARDS = (1, 12)
# Seconds for which a worker without jobs is watched; jobs among which a page is read.
_WATCH, _JOBS, _PAGES = 20.0, 200_000, 100


def _system(shards: int) -> System:
    return replace(HEADRACE, env={**HEADRACE.env, "HEADRACE_SHARDS": str(shards)} if shards > 1 else HEADRACE.env)


def _idle(context: Context, shards: int) -> tuple[float, float]:
    """Milliseconds from enqueue to the first line, and requests a second without jobs."""
    system = _system(shards)
    with server() as target, stamps() as pipe, context.worker(system, target, pipe):
        # Each shard is connected to by the first of its jobs.
        context.produce(system, target, "latency", 5 * shards, pipe)
        taken = context.produce(system, target, "latency", context.scaled(200), pipe)["latency"]
        time.sleep(2.0)
        before = target.work()
        time.sleep(_WATCH)
        # The second reading is one of ours.
        return percentile(taken, 50) / 1e6, (target.work().trips - before.trips - 1) / _WATCH


def _work(number: int) -> None:
    del number


def _page(context: Context, shards: int) -> float:
    """Milliseconds for a page of 100."""
    with server() as target, Headrace(target.url, shards=shards) as app:
        task = app.task(name="work")(_work).options()
        app.enqueue_many(task.job(number) for number in range(context.scaled(_JOBS)))
        taken = list[float]()
        for _ in range(_PAGES):
            began = time.perf_counter()
            app.jobs.page("ready", queue="default")
            taken.append((time.perf_counter() - began) * 1e3)
        return median(taken)


def _enqueue(context: Context, shards: int) -> float:
    """Microseconds of the producer's processor for one job, stored alone."""
    with server() as target, Headrace(target.url, shards=shards) as app:
        task = app.task(name="work")(_work).options()
        for number in range(20 * shards):
            task.enqueue(number)
        count, before = context.scaled(5_000), time.process_time()
        for number in range(count):
            task.enqueue(number)
        return (time.process_time() - before) / count * 1e6


def run(context: Context) -> list[Figure]:
    """Twelve shards of one server beside one."""
    context.say("shards: idle workers")
    (one_start, _), (start, requests) = (_idle(context, shards) for shards in _SHARDS)
    context.say("shards: enqueue")
    one_cost, cost = (_enqueue(context, shards) for shards in _SHARDS)
    context.say("shards: pages")
    one_page, page = (_page(context, shards) for shards in _SHARDS)
    return [
        Figure("12 shards, idle latency, p50", start, "ms", "one shard", one_start, Bar("at most", 1.2, "ratio")),
        Figure("12 shards, requests of an idle worker", requests, "requests/s", bar=Bar("at most", 3)),
        Figure("12 shards, producer's CPU per enqueue", cost, "µs", "one shard", one_cost),
        Figure("12 shards, page of 100 jobs", page, "ms", "one shard", one_page, Bar("at most", 3, "ratio")),
    ]
