"""Kill: SIGKILL of a whole worker, and of one runner, while jobs run; how long until the jobs start again.

The lease is set to 2 s for the first: the wait is the lease plus what finding out costs, and the lease is
a setting.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from bench.context import Context
from bench.figure import Bar, Figure
from bench.ledger import Entry, entries, ledger
from bench.processes import Group, wait_until
from bench.servers import Server, server
from bench.systems import HEADRACE, System

_LEASE, _RUNNERS = 2.0, 4
_OWNERS = "{hr:0}:owners"


def _with(runners: int, path: Path) -> System:
    env = {"BENCH_LEDGER": str(path), "HEADRACE_LEASE": f"{_LEASE:g}"}
    return replace(HEADRACE, worker=(*HEADRACE.worker[:-1], str(runners)), env=env)


def _wait_for_starts(path: Path, worker: Group, starts: int, jobs: int) -> list[Entry]:
    """The ledger, once each of ``jobs`` jobs has started ``starts`` times."""

    def started() -> bool:
        worker.check()
        counts = Counter(entry.kind for entry in entries(path))
        return len(counts) == jobs and min(counts.values()) >= starts

    wait_until(started, f"start {starts} of {jobs} jobs", 60)
    return entries(path)


def _restarts(told: list[Entry], killed: int) -> list[float]:
    """Milliseconds from the kill to each start after it."""
    return [(entry.started - killed) / 1e6 for entry in told if entry.started > killed]


def _owners(target: Server, count: int) -> None:
    wait_until(lambda: int(target.client.zcard(_OWNERS)) >= count, f"dispatcher {count} to come up")


def _whole_worker(context: Context) -> float:
    with server() as target, ledger() as path:
        system = _with(_RUNNERS, path)
        with context.worker(system, target) as first:
            context.produce(system, target, "hanging", _RUNNERS)
            _wait_for_starts(path, first, 1, _RUNNERS)
            with context.worker(system, target) as second:
                _owners(target, 2)
                killed = time.monotonic_ns()
                first.kill()
                return max(_restarts(_wait_for_starts(path, second, 2, _RUNNERS), killed))


def _one_runner(context: Context) -> float:
    with server() as target, ledger() as path:
        system = _with(1, path)
        with context.worker(system, target) as worker:
            context.produce(system, target, "hanging", 1)
            (entry,) = _wait_for_starts(path, worker, 1, 1)
            killed = time.monotonic_ns()
            os.kill(entry.pid, signal.SIGKILL)
            return max(_restarts(_wait_for_starts(path, worker, 2, 1), killed))


def run(context: Context) -> list[Figure]:
    """Milliseconds from the kill to the last of the killed jobs' new starts."""
    context.say("kill: a whole worker")
    worker = _whole_worker(context)
    context.say("kill: one runner")
    runner = _one_runner(context)
    limit = 1000 * (_LEASE + 1)
    return [
        Figure(
            f"kill of a worker, lease {_LEASE:g} s: started elsewhere",
            worker,
            "ms",
            bar=Bar("at most", limit),
        ),
        Figure("kill of a runner: its job starts again", runner, "ms", bar=Bar("at most", 100)),
    ]
