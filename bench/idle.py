"""Idle latency: from the call of enqueue to the first line of the job, on an idle worker."""

from __future__ import annotations

from bench.context import Context, stamps
from bench.figure import Bar, Figure, percentile
from bench.servers import server
from bench.systems import HEADRACE, System


def _latencies(context: Context, system: System) -> list[float]:
    with server() as target, stamps() as pipe, context.worker(system, target, pipe):
        answer = context.produce(system, target, "latency", context.scaled(200), pipe)
    return [nanoseconds / 1e6 for nanoseconds in answer["latency"]]


def run(context: Context) -> list[Figure]:
    """Median and 99th percentile of each system, beside the better of Huey's two kinds."""
    taken = context.each(context.systems(), "idle latency", _latencies)
    figures: list[Figure] = []
    for percent, limit in ((50, 1.0), (99, 2.0)):
        hueys = [percentile(times, percent) for system, times in taken.items() if system.name.startswith("Huey")]
        reference = min(hueys, default=None)
        for system, times in taken.items():
            bar = Bar("at most", limit, "ratio") if system is HEADRACE else None
            name = f"idle latency, p{percent}: {system.name}"
            figures.append(Figure(name, percentile(times, percent), "ms", "Huey", reference, bar))
    return figures
