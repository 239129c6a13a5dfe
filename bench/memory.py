"""Memory: bytes on the server for each queued job: without arguments, and with an integer and a short text."""

from __future__ import annotations

from functools import partial

from bench.context import Context
from bench.enqueue import brand, distinct_producers
from bench.figure import Bar, Figure
from bench.servers import server
from bench.systems import HEADRACE, System

# What is produced, by the words of `bench.produce`, and the bar of each.
_JOBS = {"bulk": ("memory per queued job without arguments", 200), "small": ("memory per queued job", 300)}
_FIRST, _MORE = 1_000, 20_000


def _bytes(context: Context, system: System, verb: str) -> float:
    more = context.scaled(_MORE)
    with server() as target:
        # The first jobs load scripts and make the structures that every queue has, however short.
        context.produce(system, target, verb, _FIRST)
        before = target.work().memory
        context.produce(system, target, verb, more)
        return (target.work().memory - before) / more


def run(context: Context) -> list[Figure]:
    """Growth of the server's memory per job, after a first thousand."""
    figures: list[Figure] = []
    for verb, (what, most) in _JOBS.items():
        taken = context.each(distinct_producers(context.systems()), what, partial(_bytes, verb=verb))
        bar = Bar("at most", most)
        for system, size in taken.items():
            figures.append(Figure(f"{what}: {brand(system)}", size, "bytes", bar=bar if system is HEADRACE else None))
    return figures
