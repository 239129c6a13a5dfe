"""Fan: a workflow of one no-op, then many, then one: from the call that starts it to the first line of the last job.

Beside it a plain drain of as many jobs by the same worker, and the peers' own ways: Celery's chord, RQ's dependencies.
"""

from __future__ import annotations

from dataclasses import replace

from bench.context import Context, stamps
from bench.figure import Bar, Figure
from bench.servers import server
from bench.systems import HEADRACE, System

_WIDTH = 1000
_TWO = {
    "Headrace": ("-m", "headrace", "worker", "bench.app:app", "--processes", "2"),
    "Celery": (
        "-m", "celery", "-A", "bench.peers.celery_app", "worker", "--concurrency", "2", "--loglevel", "ERROR",
        "--without-gossip", "--without-mingle", "--without-heartbeat", "--pool", "prefork",
    ),
    "RQ": (
        "-c", "from rq.cli import main; main()", "worker-pool", "default", "--quiet", "--path", ".", "--url", "{url}",
        "--num-workers", "2", "--worker-class", "rq.SimpleWorker",
    ),
}  # fmt: skip


def _systems(context: Context) -> list[System]:
    """Each brand that has workflows, once, with two runners."""
    found: dict[str, System] = {}
    for system in context.systems():
        name = system.name.split(",")[0]
        if name in _TWO:
            found.setdefault(name, replace(system, name=name, worker=_TWO[name]))
    return list(found.values())


def _seconds(context: Context, system: System, verb: str = "fan") -> float:
    count = context.scaled(_WIDTH) + (2 if verb == "burst" else 0)
    with server() as target, stamps() as pipe, context.worker(system, target, pipe):
        return float(context.produce(system, target, verb, count, pipe)["latency"][0] / 1e9)


def run(context: Context) -> list[Figure]:
    """Seconds of each, the best peer's as the reference; and what a node costs beside a plain job."""
    taken = context.each(_systems(context), "1 -> 1,000 -> 1", _seconds)
    best = min(((seconds, name.name) for name, seconds in taken.items() if name.peer), default=None)
    figures: list[Figure] = []
    for system, seconds in taken.items():
        against = (best[1], best[0]) if best and not system.peer else ("", None)
        bar = Bar("at most", 0.1, "ratio") if not system.peer else None
        figures.append(Figure(f"1 -> 1,000 -> 1: {system.name}", seconds, "s", *against, bar=bar))
    if ours := next((seconds for system, seconds in taken.items() if not system.peer), None):
        context.say("1 -> 1,000 -> 1: as many plain jobs")
        jobs = context.scaled(_WIDTH) + 2
        plain, node = (
            1e6 * _seconds(context, replace(HEADRACE, worker=_TWO["Headrace"]), "burst") / jobs,
            1e6 * ours / jobs,
        )
        figures.append(
            Figure("a node of a workflow, all told", node, "µs", "plain job", plain, Bar("at most", 2.0, "ratio"))
        )
    return figures
