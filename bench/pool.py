"""Pool: calls of a function that does nothing, through ``headrace.Pool`` and through Python's own executors.

As many members as workers, submitted one by one and then awaited. Ours and theirs take turns, so that whatever slows
the machine down slows both; the processes are up before the clock starts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor

from bench.context import Context
from bench.figure import Bar, Figure
from headrace import Pool

_MEMBERS, _TURNS = 4, 5
_CALLS = {"thread": 20_000, "process": 5_000}
_THEIRS: dict[str, Callable[[int], Executor]] = {"thread": ThreadPoolExecutor, "process": ProcessPoolExecutor}


def nothing() -> None:
    """The call; at the top of a module, where processes find it."""


def _rate(executor: Executor, calls: int) -> float:
    with executor:
        for future in [executor.submit(nothing) for _ in range(200)]:
            future.result()
        began = time.perf_counter()
        for future in [executor.submit(nothing) for _ in range(calls)]:
            future.result()
        return calls / (time.perf_counter() - began)


def _latency(executor: Executor, calls: int) -> float:
    with executor:
        for _ in range(50):
            executor.submit(nothing).result()
        began = time.perf_counter()
        for _ in range(calls):
            executor.submit(nothing).result()
        return (time.perf_counter() - began) / calls * 1e6


def _ours(kind: str, strategy: str) -> Executor:
    pool = Pool(_MEMBERS, kind="process" if kind == "process" else "thread", strategy=strategy)
    pool.broadcall(nothing)
    return pool


def run(context: Context) -> list[Figure]:
    """Calls a second and the time there and back, of each kind and of two strategies."""
    figures: list[Figure] = []
    for kind, count in _CALLS.items():
        calls = context.scaled(count)
        for strategy in ("available", "least_loaded"):
            context.say(f"pool: {kind}, {strategy}")
            ours, theirs = list[float](), list[float]()
            for _ in range(1 if context.quick else _TURNS):
                ours.append(_rate(_ours(kind, strategy), calls))
                theirs.append(_rate(_THEIRS[kind](_MEMBERS), calls))
            name, bar = f"pool of {kind} members, no-op calls: {strategy}", Bar("at least", 1, "ratio")
            rival, rate = f"{kind.title()}PoolExecutor", statistics.median(theirs)
            # Theirs have no strategy but the central queue: only ours of the same kind is held to it.
            held = bar if strategy == "available" else None
            figures.append(Figure(name, statistics.median(ours), "calls/s", rival, rate, held))
        context.say(f"pool: {kind}, one call at a time")
        back = _latency(_ours(kind, "available"), calls // 10)
        their = _latency(_THEIRS[kind](_MEMBERS), calls // 10)
        figures.append(
            Figure(f"pool of {kind} members, there and back", back, "us", f"{kind.title()}PoolExecutor", their)
        )
    return figures
