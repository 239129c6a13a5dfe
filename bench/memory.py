"""Memory: bytes on the server for each queued job with two small arguments, an integer and a short text."""

from __future__ import annotations

from bench.context import Context
from bench.enqueue import brand, distinct_producers
from bench.figure import Bar, Figure
from bench.servers import server
from bench.systems import HEADRACE, System

_BAR = Bar("at most", 300)
_FIRST, _MORE = 1_000, 20_000


def _bytes(context: Context, system: System) -> float:
    more = context.scaled(_MORE)
    with server() as target:
        # The first jobs load scripts and make the structures that every queue has, however short.
        context.produce(system, target, "small", _FIRST)
        before = target.work().memory
        context.produce(system, target, "small", more)
        return (target.work().memory - before) / more


def run(context: Context) -> list[Figure]:
    """Growth of the server's memory per job, after a first thousand."""
    taken = context.each(distinct_producers(context.systems()), "memory per queued job", _bytes)
    return [
        Figure(f"memory per queued job: {brand(system)}", size, "bytes", bar=_BAR if system is HEADRACE else None)
        for system, size in taken.items()
    ]
