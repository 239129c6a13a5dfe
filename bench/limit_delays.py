"""How long limits keep a job waiting that may start: wall clock, so on an idle machine only the bars count.

Part of ``python -m bench limits``.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

from bench.context import Context, stamps
from bench.figure import Bar, Figure, percentile
from bench.ledger import Entry, entries, ledger
from bench.limit_tokens import WORKER, enough_workers, settle_tokens, tokens_of
from bench.processes import wait_until
from bench.servers import server
from bench.systems import HEADRACE

_LEASE, _RATE = 2.0, 20
_LIMITED = replace(HEADRACE, module="bench.limits_app")


def _worker(runners: int) -> tuple[str, ...]:
    return (*WORKER[:-1], str(runners))


def _opened(context: Context) -> Figure:
    """From the time at which a rate lets the next job start to its first line, on two idle workers."""
    seconds = 6 if context.quick else 60
    starts = tokens_of(context, _RATE, seconds, workers=2, kill=False)
    late: list[float] = []
    step, slack, opens = 1e6 / _RATE, 10_000, float(starts[0].token)
    for start in starts:
        # None is claimed before its time, so the one that came the least late tells when that is.
        opens = min(opens, start.token)
        late.append((start.began - opens) / 1000)
        # As the scripts reckon: what comes late by more than this is not made good.
        opens = max(opens, start.token - slack) + step
    return Figure(
        f"a gate opens, {_RATE} a second: its job's first line, p99", percentile(late, 99), "ms", "p50",
        percentile(late, 50), Bar("at most", 10),
    )  # fmt: skip


def _killed(context: Context) -> Figure:
    """From SIGKILL of the runner that holds a limit of one to the first line of the next job that has it."""
    kills = 5 if context.quick else 30
    with server() as target, ledger() as path:
        system = replace(_LIMITED, worker=_worker(2), env={"BENCH_LEDGER": str(path)})
        with context.worker(system, target) as worker:
            context.produce(system, target, "holding", 2 * kills + 2)
            delays: list[float] = []
            seen: list[Entry] = []

            def holder() -> Entry | None:
                """The one that started last, if it is the first start of its job, which never returns."""
                worker.check()
                seen[:] = entries(path)
                last = seen[-1] if seen else None
                return last if last and sum(one.kind == last.kind for one in seen) == 1 else None

            for _ in range(kills):
                wait_until(holder, "a job that holds the limit", 30, pause=0.001)
                pid, before, killed = seen[-1].pid, len(seen), time.monotonic_ns()
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda before=before: len(entries(path)) > before, "the next start", 30, pause=0.001)
                delays.append((entries(path)[before].started - killed) / 1e6)
    return Figure(
        f"a runner is killed, {kills} times: another job has its slot, worst", max(delays), "ms", "p50",
        percentile(delays, 50), Bar("at most", 100),
    )  # fmt: skip


def _machine_dead(context: Context) -> Figure:
    """From SIGKILL of the whole worker that holds a limit of one to the next start on another."""
    delays: list[float] = []
    for _ in range(1 if context.quick else 3):
        with server() as target, ledger() as path:
            env = {"BENCH_LEDGER": str(path), "HEADRACE_LEASE": f"{_LEASE:g}"}
            system = replace(_LIMITED, worker=_worker(1), env=env)
            with context.worker(system, target) as first:
                context.produce(system, target, "holding", 2)
                wait_until(lambda path=path: entries(path), "a first start")
                with context.worker(system, target):
                    enough_workers(target, 2)
                    killed = time.monotonic_ns()
                    first.kill()
                    wait_until(lambda path=path: len(entries(path)) > 1, "a start elsewhere", pause=0.001)
                    delays.append((entries(path)[1].started - killed) / 1e6)
    name = f"a worker is killed, lease {_LEASE:g} s: another has its slot"
    return Figure(name, max(delays), "ms", bar=Bar("at most", 1000 * (_LEASE + 1)))


def _newcomer(context: Context) -> Figure:
    """From enqueue to the first line of a new value's job, beside one value with a backlog."""
    backlog = 20_000 if context.quick else 1_000_000
    with server() as target, stamps() as pipe:
        system = replace(_LIMITED, worker=_worker(4))
        context.produce(system, target, "backlog", backlog)
        with context.worker(system, target, pipe):
            enough_workers(target, 1)
            settle_tokens(1.0)
            answer = context.produce(system, target, "latency", 100 if context.quick else 1000, pipe)
    delays = [nanoseconds / 1e6 for nanoseconds in answer["latency"]]
    return Figure(
        f"a new value beside {backlog:,} jobs of 10 ms on four runners: its first job, p99", percentile(delays, 99),
        "ms", "p50", percentile(delays, 50), Bar("at most", 30),
    )  # fmt: skip


def delays(context: Context) -> list[Figure]:
    """LN5 and LN7 of the design of limits."""
    figures: list[Figure] = []
    for measure in (_opened, _killed, _machine_dead, _newcomer):
        context.say(f"limits: {(measure.__doc__ or '').splitlines()[0]}")
        figures.append(measure(context))
    return figures
