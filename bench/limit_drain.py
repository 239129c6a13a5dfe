"""Drains under limits (LN1 and LN2), beside one without: how much of a worker's rate is left."""

from __future__ import annotations

from dataclasses import replace

from bench.context import Context
from bench.drain import measure
from bench.figure import Bar, Figure
from bench.systems import HEADRACE, System

# As many values as jobs.
_JOBS = 100_000
_WORKER = ("-m", "headrace", "worker", "bench.limit_drain_app:app", "--processes", "1")
# Limited jobs wait in lanes, of which a line holds one entry a class.
_UNSETTLED = """
local ready, left = '{hr:0}:ready:default', 0
for _, owner in ipairs(redis.call('ZRANGE', '{hr:0}:owners', 0, -1)) do
  left = left + redis.call('ZCARD', '{hr:0}:claims:' .. owner)
end
local counts = redis.call('HGETALL', '{hr:0}:classes:default')
for n = 1, #counts, 2 do
  if not string.find(counts[n], '|', 1, true) then
    left = left + tonumber(counts[n + 1]) - (redis.call('ZSCORE', ready, '~' .. counts[n]) and 1 or 0)
  end
end
return left + redis.call('ZCARD', ready)
"""


def _system(name: str, limits: str) -> System:
    return replace(
        HEADRACE, name=name, module="bench.limit_drain_app", worker=_WORKER, unsettled=_UNSETTLED, jobs=_JOBS,
        env={"BENCH_LIMITS": limits},
    )  # fmt: skip


def drains(context: Context) -> list[Figure]:
    """Rates of a worker with one process, against that without limits."""
    free = _system("no limits", "none")
    loose = _system("a limit that never binds", "loose")
    values = _system(f"{context.scaled(_JOBS):,} values, each with a rate and one at once", "values")
    found = context.each((free, loose, values), "limits, drain", measure)
    bars = {loose: Bar("at least", 0.8, "ratio"), values: Bar("at least", 0.5, "ratio")}
    return [
        Figure(f"drain, {one.name}", got.rate, "jobs/s", "no limits", found[free].rate, bars.get(one))
        for one, got in found.items()
        if free in found
    ]
