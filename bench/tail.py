"""The worst of ten thousand starts on an idle worker: what stalls it now and then."""

from __future__ import annotations

from bench.context import Context, stamps
from bench.figure import Bar, Figure, percentile
from bench.servers import server
from bench.systems import HEADRACE

_STARTS = 10_000


def run(context: Context) -> list[Figure]:
    """Median, 99th and 99.9th percentile and the worst, each beside the median."""
    context.say(f"idle latency of {_STARTS:,} starts, 90 s")
    with server() as target, stamps() as pipe, context.worker(HEADRACE, target, pipe):
        answer = context.produce(HEADRACE, target, "tail", context.scaled(_STARTS), pipe)
    times = [nanoseconds / 1e6 for nanoseconds in answer["latency"]]
    middle = percentile(times, 50)
    figures = [
        Figure(f"idle starts, p{percent:g}", percentile(times, percent), "ms", "p50", middle, bar)
        for percent, bar in ((50, None), (99, None), (99.9, Bar("at most", 5.0)))
    ]
    return [*figures, Figure("idle starts, the worst", max(times), "ms", "p50", middle)]
