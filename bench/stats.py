"""Statistics: what a count costs its caller, buffered beside unbuffered; what they cost a worker that drains; and how
many buckets a year of hours takes.

Counts go to one label of three levels in four resolutions. The unbuffered rate is of fewer calls, since each is a
round trip; a call's time is taken from calls that no flush interrupts. Drains with and without the engine's own counts
take turns, and the figure is the median of the ratios of neighbours, since a machine is not equally quick all the time.
Bucket reads are of every 365 days that begin at an hour of one year, by the planner that the readings use. The error of
a percentile is the largest of many, of values of several distributions that were merged from parts.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from statistics import median

from bench import drain
from bench.context import Context
from bench.figure import Bar, Figure, percentile
from bench.servers import Server, server
from bench.systems import HEADRACE

_ADDS, _SINGLE, _ROUND = 100_000, 3_000, 250
_PAIRS = 5
_KEEP = "hour=3y day=3y month=3y quarter=3y"
_LABEL, _FIELDS = "views/product/44", {"count": 1}
_YEAR, _HOUR = 365 * 86400, 3600


def _rate(target: Server, count: int, buffer: int) -> tuple[float, float]:
    """Calls a second, and requests that the server read for all of them."""
    from headrace import Headrace

    with Headrace(target.url, stats_keep=_KEEP, stats_buffer=buffer) as app:
        stats = app.stats
        # The first call connects and loads the script.
        stats.add(_LABEL, _FIELDS)
        stats.flush()
        before, start = stats.find(_LABEL, 0, every="quarter", inclusive=True)["count"], target.work()
        first = time.perf_counter()
        for _ in range(count):
            stats.add(_LABEL, {"count": 1})
        stats.flush()
        seconds, trips = time.perf_counter() - first, (target.work() - start).trips - 1
        assert stats.find(_LABEL, 0, every="quarter", inclusive=True)["count"] == before + count
    return count / seconds, trips


def _call(target: Server, rounds: int) -> float:
    """Microseconds of one call, of the quickest rounds: short ones, so that the machine's other work is left out."""
    from headrace import Headrace

    with Headrace(target.url, stats_keep=_KEEP, stats_buffer=10**9, stats_flush_interval=3600) as app:
        stats, took = app.stats, list[float]()
        stats.add(_LABEL, _FIELDS)
        for _ in range(rounds):
            first = time.perf_counter()
            for _ in range(_ROUND):
                stats.add(_LABEL, {"count": 1})
            took.append(1e6 * (time.perf_counter() - first) / _ROUND)
    return percentile(took, 10)


def _reads(step: int) -> list[int]:
    from headrace.stats.reading import cover
    from headrace.stats.resolutions import layout_of

    layout = layout_of("hour=9y day=9y month=9y quarter=9y")
    first = int(datetime(2025, 1, 1, tzinfo=UTC).timestamp())
    starts = range(first, first + _YEAR, step * _HOUR)
    return [cover(layout, layout.level("hour"), at, at + _YEAR, first).reads for at in starts]


def _drains(context: Context) -> tuple[float, float]:
    """Jobs a second with the engine's counts and, by the median of the ratios of neighbours, without them."""
    counting = replace(HEADRACE, name="Headrace, counting", env={"HEADRACE_STATS_JOBS": "true"})
    silent = replace(HEADRACE, name="Headrace, not counting", env={"HEADRACE_STATS_JOBS": "false"})
    rates: list[float] = []
    ratios: list[float] = []
    for n in range(1 if context.quick else _PAIRS):
        context.say(f"statistics: drain with and without, pair {n + 1}")
        # First the one, then the other: a machine that grows slower during a pair favours neither.
        order = (counting, silent) if n % 2 else (silent, counting)
        pair = {system.name: drain.measure(context, system).rate for system in order}
        rates.append(pair[counting.name])
        ratios.append(pair[counting.name] / pair[silent.name])
    return median(rates), median(rates) / median(ratios)


def _error(count: int) -> float:
    """The largest relative error of a percentile, in per cent."""
    from headrace.stats.resolutions import Histogram, bucket_of, histogram_of, middle_of

    dice, worst = random.Random(1), 0.0
    for draw in (
        lambda: dice.lognormvariate(-4, 2),
        lambda: dice.uniform(0.001, 1000),
        lambda: dice.paretovariate(1.1),
        lambda: dice.choice((0.0001, 0.5, 7e6)),
    ):
        values, whole = [draw() for _ in range(count)], Histogram({})
        for first in range(0, count, count // 10):
            part = Counter(bucket_of(value) for value in values[first : first + count // 10])
            whole = whole + histogram_of({middle_of(number): n for number, n in part.items()})
        values.sort()
        for per_mille in range(1, 1001):
            true = values[max(1, math.ceil(count * per_mille / 1000)) - 1]
            worst = max(worst, abs(whole.percentile(per_mille / 10) - true) / true)
    return 100 * worst


def run(context: Context) -> list[Figure]:
    """Counts a second, buffered and not; a call's time; drains; bucket reads of a year; errors of percentiles."""
    with server() as target:
        context.say("statistics: unbuffered")
        single, _ = _rate(target, context.scaled(_SINGLE), 0)
        context.say("statistics: buffered")
        adds = context.scaled(_ADDS)
        merged, trips = _rate(target, adds, 10_000)
        call = _call(target, context.scaled(_ADDS) // _ROUND)
    counting, silent = _drains(context)
    context.say("statistics: bucket reads")
    reads = _reads(10 if context.quick else 1)
    return [
        Figure("statistics: adds, buffered", merged, "calls/s", "unbuffered", single, Bar("at least", 100, "ratio")),
        Figure("statistics: one add to a known series", call, "us", bar=Bar("at most", 2)),
        Figure(f"statistics: round trips of {adds:,} adds", trips, "trips"),
        Figure(
            "statistics: drain, counting", counting, "jobs/s", "not counting", silent, Bar("at least", 0.95, "ratio")
        ),
        Figure("statistics: error of a percentile, the worst", _error(10_000), "%", bar=Bar("at most", 2)),
        Figure("statistics: bucket reads, a calendar year of hours", reads[0], "reads", bar=Bar("at most", 60)),
        Figure("statistics: bucket reads, any 365 days, median", median(reads), "reads", bar=Bar("at most", 60)),
        Figure("statistics: bucket reads, any 365 days, the worst", max(reads), "reads", bar=Bar("at most", 60)),
    ]
