"""Unique jobs: what their names cost an enqueue and the server, beside jobs without, in one process and run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.context import Context
from bench.figure import Bar, Figure
from bench.processes import BenchError
from bench.servers import Server, server
from headrace import Headrace, Unique
from headrace.tasks.bound_task import BoundTask

_SINGLE, _ROUNDS, _NAMES = 300, 10, 20_000
_RATIO, _BYTES = 0.8, 150


@contextmanager
def _tasks() -> Iterator[tuple[Server, Headrace, BoundTask[[int, str], None], BoundTask[[int, str], None]]]:
    """A server, and a task with and without a name."""
    with server() as target, Headrace(target.url) as app:

        def greet(user: int, name: str) -> None:
            del user, name

        task = app.task(name="greet")(greet)
        yield target, app, task.options(), task.options(unique=Unique())


def _cpu(target: Server, enqueue: Callable[[int], object], first: int, count: int) -> float:
    """Processor time of client and server for one enqueue, microseconds."""
    before, began = target.work(), time.process_time()
    for n in range(first, first + count):
        enqueue(n)
    mine = (time.process_time() - began) * 1e6
    return (mine + (target.work() - before).cpu) / count


def _rates(context: Context) -> list[Figure]:
    spent = {"plain": 0.0, "fresh": 0.0, "clashing": 0.0}
    count = context.scaled(_SINGLE)
    with _tasks() as (target, _, plain, unique):
        # The first of each loads scripts, and code of the client.
        plain.enqueue(-1, "Ada")
        unique.enqueue(-1, "Ada")
        unique.enqueue(-1, "Ada")
        for number in range(_ROUNDS):
            first = number * count
            spent["plain"] += _cpu(target, lambda n: plain.enqueue(n, "Ada"), first, count)
            spent["fresh"] += _cpu(target, lambda n: unique.enqueue(n, "Ada"), first, count)
            spent["clashing"] += _cpu(target, lambda _: unique.enqueue(-1, "Ada"), first, count)
    # Enqueues per second of processor time: other programs on the machine do not change it.
    rate = {kind: 1e6 * _ROUNDS / micros for kind, micros in spent.items()}
    bar = Bar("at least", _RATIO, "ratio")
    return [
        Figure(f"unique enqueue, one at a time: {kind}", rate[kind], "jobs/CPU s", "plain", rate["plain"], bar)
        for kind in ("fresh", "clashing")
    ]


def _names(context: Context) -> list[Figure]:
    count = context.scaled(_NAMES)
    grown: list[float] = []
    with _tasks() as (target, app, plain, unique):
        for bound in (plain, unique):
            app.enqueue_many(bound.job(n, "Ada") for n in range(-1000, 0))
            before = target.work().memory
            app.enqueue_many(bound.job(n, "Ada") for n in range(count))
            grown.append((target.work().memory - before) / count)
        while app.queues["default"].purge():
            pass
        left = sum(1 for _ in target.client.scan_iter(match="*unique:*"))
    if left:
        raise BenchError(f"{left:,} names are left without a job")
    return [
        Figure("unique jobs: a name and its record's field", grown[1] - grown[0], "bytes", bar=Bar("at most", _BYTES)),
        Figure("unique jobs: names left when all have ended", float(left), "names", bar=Bar("at most", 0)),
    ]


def run(context: Context) -> list[Figure]:
    """Enqueues of new and of held names beside plain ones; bytes of a name."""
    context.say("unique: enqueues")
    return [*_rates(context), *_names(context)]
