"""Enqueue: one at a time, many at once, and the producer's memory while it streams a million."""

from __future__ import annotations

from bench.context import Context
from bench.figure import Bar, Figure
from bench.servers import server
from bench.systems import HEADRACE, System

_SINGLE, _BULK, _BULK_HEADRACE, _STREAM = 3_000, 10_000, 100_000, 1_000_000
_GROWTH = 10.0
# A caller that checks for its reply must not slow its neighbours.
_COMPANY = {"4 threads": "four_threads", "8 threads": "eight_threads", "beside a busy process": "beside_a_loop"}


def distinct_producers(systems: list[System]) -> list[System]:
    """One of each producer: the kinds of worker do not matter here."""
    return list({system.module: system for system in reversed(systems)}.values())[::-1]


def brand(system: System) -> str:
    return system.name.partition(",")[0]


def _rate(context: Context, system: System, verb: str, count: int) -> float:
    count = context.scaled(count)
    with server() as target:
        return count / float(context.produce(system, target, verb, count)["seconds"])


def _single(context: Context, system: System) -> float:
    return _rate(context, system, "single", _SINGLE)


def _bulk(context: Context, system: System) -> float:
    return _rate(context, system, "bulk", _BULK_HEADRACE if system is HEADRACE else _BULK)


def _stream(context: Context) -> Figure:
    with server() as target:
        answer = context.produce(HEADRACE, target, "stream", context.scaled(_STREAM))
    name = "enqueue, producer's growth over 1,000,000 streamed: Headrace"
    return Figure(name, answer["growth"] / 1e6, "MB", bar=Bar("at most", _GROWTH))


def run(context: Context) -> list[Figure]:
    """Jobs a second, single and bulk, of every producer; Headrace's growth while it streams."""
    producers = distinct_producers(context.systems())
    singles = context.each(producers, "enqueue one at a time", _single)
    bulks = context.each(producers, "enqueue many", _bulk)
    best = max((rate for system, rate in singles.items() if system.peer), default=None)
    rq = next((rate for system, rate in bulks.items() if brand(system) == "RQ"), None)
    figures: list[Figure] = []
    for system in (system for system in producers if system in singles and system in bulks):
        ours = system is HEADRACE
        bar = Bar("at least", 1.0, "ratio") if ours else None
        figures.append(
            Figure(f"enqueue one at a time: {brand(system)}", singles[system], "jobs/s", "best peer", best, bar)
        )
        bar = Bar("at least", 4.0, "ratio") if ours else None
        figures.append(Figure(f"enqueue many: {brand(system)}", bulks[system], "jobs/s", "RQ", rq, bar))
    if HEADRACE in bulks:
        for name, verb in _COMPANY.items():
            context.say(f"enqueue one at a time, {name}")
            figures.append(Figure(f"enqueue one at a time, {name}", _rate(context, HEADRACE, verb, _SINGLE), "jobs/s"))
        figures.append(Figure("enqueue many: Headrace's rate", bulks[HEADRACE], "jobs/s", bar=Bar("at least", 40_000)))
        context.say("enqueue: a million, streamed")
        figures.append(_stream(context))
    return figures
