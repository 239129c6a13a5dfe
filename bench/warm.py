"""Warm-up: a thousand jobs, each in a fork of its own, four at once, need SQLAlchemy's mappers of sixty classes.

*Cold*: each job configures them. *Warm*: they are configured once, before the forks. And a no-op in a fork of its own
beside RQ's forking worker, four processes each.
"""

from __future__ import annotations

from dataclasses import replace

from bench.context import Context
from bench.drain import measure
from bench.figure import Bar, Figure
from bench.systems import HEADRACE, PEERS

_JOBS = 1_000
_FORKS = ("--forks", "4")
_COLD = replace(
    HEADRACE,
    name="cold",
    module="bench.warm_app",
    worker=("-m", "headrace", "worker", "bench.warm_app:app", *_FORKS),
    jobs=_JOBS,
)
_WARM = replace(_COLD, name="warm", worker=(*_COLD.worker, "--preload", "sqlalchemy.orm:configure_mappers"))
_NOOP = replace(
    HEADRACE,
    name="Headrace, a fork per job",
    module="bench.fork_app",
    worker=("-m", "headrace", "worker", "bench.fork_app:app", *_FORKS),
    jobs=4_000,
)
_RQ = next(peer for peer in PEERS if peer.name == "RQ, forking")
_RQ_POOL = replace(
    _RQ,
    name="RQ, forking, 4 processes",
    worker=(*("worker-pool" if word == "worker" else word for word in _RQ.worker), "--num-workers", "4"),
    jobs=400,
)


def run(context: Context) -> list[Figure]:
    """Rates and processor time."""
    done = context.each((_COLD, _WARM), "warm", measure)
    cold, warm = (done[system].rate if system in done else None for system in (_COLD, _WARM))
    figures = [Figure("jobs that need set-up: cold", cold, "jobs/s")]
    name, bar = "jobs that need set-up: warm", Bar("at least", 5, "ratio")
    figures.append(Figure(name, warm, "jobs/s", "cold", cold, bar))
    if _COLD in done and _WARM in done:
        name = "jobs that need set-up, worker CPU per job: warm"
        figures.append(Figure(name, done[_WARM].worker, "µs", "cold", done[_COLD].worker))
    forks = context.each((_NOOP, _RQ_POOL) if context.peers else (_NOOP,), "forks", measure)
    ours, rq = forks.get(_NOOP), forks.get(_RQ_POOL)
    name, bar = "no-op, a fork per job: Headrace", Bar("at least", 5, "ratio")
    rates = [one.rate if one else None for one in (ours, rq)]
    figures.append(Figure(name, rates[0], "jobs/s", _RQ_POOL.name, rates[1], bar if ours and rq else None))
    name = "no-op, a fork per job, worker CPU per job: Headrace"
    spent = [one.worker if one else None for one in (ours, rq)]
    figures.append(Figure(name, spent[0], "µs", _RQ_POOL.name, spent[1]))
    return figures
