"""Mixed: 2,000 jobs of 1 ms with 12 jobs of 2 s (sleeping) among them, 4 process runners, prefetching on and
off.

Sending work ahead must not cost those who wait: a short job that was sent to a runner which a long job
then holds would wait for its two seconds. The same order of jobs runs with prefetching off, one job at a
time from the central queue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.context import Context
from bench.figure import Bar, Figure, percentile
from bench.ledger import entries, ledger
from bench.processes import wait_until
from bench.servers import server
from bench.systems import HEADRACE

_JOBS, _SEED = 2012, 2012
_WORKER = replace(HEADRACE, worker=(*HEADRACE.worker[:-1], "4"))
#: Two runs of the same order differ by scheduling: a run may take this share longer and still be "no longer".
_NOISE = 1.02


@dataclass(frozen=True, slots=True)
class Mixed:
    """One run; milliseconds from the first start.

    Attributes:
        wait: until a short job started, at p99.
        total: until the last job ended.
    """

    wait: float
    total: float


def _mixed(context: Context, *, prefetch: bool) -> Mixed:
    with server() as target, ledger() as path:
        env = {"BENCH_LEDGER": str(path)} | ({} if prefetch else {"HEADRACE_PREFETCH_SECONDS": "0"})
        system = replace(_WORKER, env=env)
        context.produce(system, target, "mixed", _SEED)
        with context.worker(system, target) as worker:

            def done() -> bool:
                worker.check()
                return path.read_bytes().count(b"\n") >= _JOBS

            wait_until(done, f"{_JOBS} mixed jobs", 120, pause=0.05)
        told = entries(path)
    first = min(entry.started for entry in told)
    waits = [(entry.started - first) / 1e6 for entry in told if entry.kind == "short"]
    return Mixed(percentile(waits, 99), (max(entry.ended for entry in told) - first) / 1e6)


def run(context: Context) -> list[Figure]:
    """The short jobs' wait and the length of the run, with prefetching beside without."""
    context.say("mixed: prefetching on")
    on = _mixed(context, prefetch=True)
    context.say("mixed: prefetching off")
    off = _mixed(context, prefetch=False)
    return [
        Figure("mixed, short jobs' wait p99: prefetching", on.wait, "ms", "without", off.wait),
        Figure("mixed, wait over no prefetching", on.wait - off.wait, "ms", bar=Bar("at most", 50)),
        Figure(
            "mixed, whole run: prefetching",
            on.total,
            "ms",
            "without",
            off.total,
            Bar("at most", _NOISE, "ratio"),
        ),
    ]
