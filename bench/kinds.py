"""Kinds: a worker with runners of one kind drains no-op jobs, as in the benchmark ``drain``.

With ``BENCH_BASE=DIRECTORY``, the ``src`` of another commit's checkout, that commit drains in turn with this one and is
the reference.
"""

from __future__ import annotations

import os

from bench.context import Context
from bench.drain import Drained, measure
from bench.figure import Bar, Figure
from bench.processes import ROOT
from bench.systems import HEADRACE, System

# Kind -> the option that says how many at once, and how many jobs.
_KINDS = {
    "process": (("--processes", "1"), 50_000),
    "thread": (("--threads", "16"), 30_000),
    "async": (("--concurrency", "100"), 30_000),
    "fork": (("--forks", "1"), 1_000),
}
# What the kinds should reach of the reference, and per second.
_RATIOS = {"process": 1.0, "thread": 1.0, "async": 1.2, "fork": 1.0}
_RATES = {"thread": 25_000}


def path_to(base: str) -> dict[str, str]:
    """The environment in which a program is that of another commit; of this one if ``base`` is empty."""
    return {"PYTHONPATH": f"{base}{os.pathsep}{ROOT}"} if base else {}


def system_of(kind: str, base: str) -> System:
    """A worker with runners of one kind."""
    options, jobs = _KINDS[kind]
    env = {"BENCH_KIND": kind, **path_to(base)}
    worker = ("-m", "headrace", "worker", "bench.kind_app:app", *options)
    return System(
        f"{kind}{', base' if base else ''}", "bench.kind_app", worker, HEADRACE.unsettled, jobs, False, env=env
    )


def _figures(kind: str, got: Drained, base: Drained | None) -> list[Figure]:
    bar = None if base is None else Bar("at least", _RATIOS[kind], "ratio")
    was = [None] * 3 if base is None else [base.rate, base.trips, base.worker]
    figures = [Figure(f"kinds, drain: {kind}", got.rate, "jobs/s", "base", was[0], bar)]
    if kind in _RATES:
        figures.append(Figure(f"kinds, drain a second: {kind}", got.rate, "jobs/s", bar=Bar("at least", _RATES[kind])))
    figures.append(Figure(f"kinds, trips per job: {kind}", got.trips, "trips", "base", was[1]))
    if got.worker is not None:
        figures.append(Figure(f"kinds, worker CPU per job: {kind}", got.worker, "µs", "base", was[2]))
    return figures


def run(context: Context) -> list[Figure]:
    """Rates, round trips and processor time of each kind of runner, beside those of another commit if one is named."""
    base = os.environ.get("BENCH_BASE", "")
    systems = {(kind, at): system_of(kind, at) for kind in _KINDS for at in dict.fromkeys(("", base))}
    wanted = [s for s in systems.values() if not context.only or any(word in s.name for word in context.only)]
    drained = context.each(wanted, "kinds", measure)
    return [
        figure
        for kind in _KINDS
        if (got := drained.get(systems[kind, ""])) is not None
        for figure in _figures(kind, got, drained.get(systems[kind, base]) if base else None)
    ]
