"""Parts: where the processor time of a job goes, process by process.

Each table is about one way of a job: an enqueue, a drain by each kind of runner, a start on an idle worker, a fork.
Processor time comes from ``schedstat``, the producer's from its own clock, that of commands from ``INFO commandstats``.
With ``BENCH_BASE=DIRECTORY``, the ``src`` of another commit's checkout, that commit is measured in turn with this one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import tally
from bench.context import Context, stamps
from bench.drain import measure
from bench.figure import Figure, percentile
from bench.kinds import path_to, system_of
from bench.processes import BenchError, Group, wait_until
from bench.servers import Server, server
from bench.systems import HEADRACE, System

# Jobs of one drain, and the part of them that is left out at its beginning and at its end.
_JOBS, _EDGE = 100_000, 0.1
# A command is shown when it takes this part of the time of all. That of scripts has their commands in it.
_SHOWN = 0.03
_SCRIPTS = ("cmdstat_eval", "cmdstat_evalsha")
_PARTS = ("server", "dispatcher", "runner")

Parts = dict[str, float]
Rows = list[tuple[str, float, str]]


def processor_time(pid: int) -> float:
    """Seconds that all threads of a process had a processor."""
    return sum(int(file.read_text().split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


@dataclass(frozen=True, slots=True)
class _Watch:
    """The processes of a server and its worker."""

    pids: dict[int, str]
    client: Any

    def read(self) -> Parts:
        """Seconds of processor time by process, and microseconds by command."""
        found: Parts = dict.fromkeys(_PARTS, 0.0)
        for pid, part in self.pids.items():
            found[part] += processor_time(pid)
        return found | {name: float(told["usec"]) for name, told in self.client.info("commandstats").items()}


def _watch(target: Server, worker: Group) -> _Watch:
    """Of a worker that has registered and whose runners are there."""
    client: Any = target.client
    owner = client.zrange("{hr:0}:owners", 0, -1)[0].decode()
    dispatcher = int(client.hget(f"{{hr:0}}:owner:{owner}", "dispatcher"))
    pids = dict.fromkeys(worker.members(), "runner") | {dispatcher: "dispatcher"}
    # The supervisor does nothing meanwhile.
    del pids[worker.pid]
    return _Watch(pids | {client.info("server")["process_id"]: "server"}, client)


def _per_job(name: str, before: Parts, after: Parts, jobs: int) -> Iterator[tuple[str, float, str]]:
    spent = {part: value - before.get(part, 0.0) for part, value in after.items()}
    for part in _PARTS:
        yield f"{name}, {part}", 1e6 * spent[part] / jobs, "µs"
    commands = {part: value for part, value in spent.items() if part.startswith("cmdstat_") and "|" not in part}
    yield f"{name}, scripts", sum(commands.pop(part, 0.0) for part in _SCRIPTS) / jobs, "µs"
    whole = sum(commands.values())
    for part, value in sorted(commands.items(), key=lambda item: -item[1]):
        if value > _SHOWN * whole:
            yield f"{name}, {part.removeprefix('cmdstat_')}", value / jobs, "µs"


def _drained(context: Context, system: System) -> Rows:
    jobs = context.scaled(_JOBS)
    name = f"drain, {system.env['BENCH_KIND']}"
    with server() as target:
        context.produce(system, target, "bulk", jobs)
        with context.worker(system, target) as worker:
            wait_until(lambda: tally.ran(target.tally) > jobs * _EDGE, "the first jobs", 60)
            watch, ran, began = _watch(target, worker), tally.ran(target.tally), time.perf_counter()
            before = watch.read()
            wait_until(lambda: tally.ran(target.tally) > jobs * (1 - _EDGE), "the last jobs", 300, pause=0.02)
            after, took, count = watch.read(), time.perf_counter() - began, tally.ran(target.tally) - ran
    return [(f"{name}, all", 1e6 * took / count, "µs"), *_per_job(name, before, after, count)]


def _idle(context: Context, system: System) -> Rows:
    """A job of an idle worker: its processor time, and the time from ``enqueue`` to its first line."""
    count = context.scaled(200)
    with server() as target, stamps() as pipe, context.worker(system, target, pipe) as worker:
        context.produce(system, target, "latency", 50, pipe)
        watch = _watch(target, worker)
        before = watch.read()
        answer = context.produce(system, target, "latency", count, pipe)
        after = watch.read()
    times = [nanoseconds / 1e6 for nanoseconds in answer["latency"]]
    rows: Rows = [(f"idle start, p{percent}", percentile(times, percent), "ms") for percent in (50, 99)]
    return [*rows, ("idle start, worst", max(times), "ms"), *_per_job("idle start", before, after, count)]


def _enqueued(context: Context, system: System) -> Rows:
    count = context.scaled(20_000)
    with server() as target:
        watch = _Watch({target.client.info("server")["process_id"]: "server"}, target.client)
        before = watch.read()
        answer = context.produce(system, target, "single", count)
        after = watch.read()
    rows: Rows = [("enqueue, all", 1e6 * answer["seconds"] / count, "µs")]
    rows.append(("enqueue, client", 1e6 * answer["cpu"] / count, "µs"))
    return rows + [row for row in _per_job("enqueue", before, after, count) if row[1]]


def _forked(context: Context, system: System) -> Rows:
    got = measure(context, system)
    return [
        ("fork, all", 1e3 / got.rate, "ms"),
        ("fork, worker", (got.worker or 0.0) / 1e3, "ms"),
        ("fork, server", got.server / 1e3, "ms"),
    ]


def run(context: Context) -> list[Figure]:
    """Microseconds a job, or milliseconds, of each process and of each command that counts."""
    if sys.platform != "linux":
        raise BenchError("parts reads /proc, which only Linux has")
    base = os.environ.get("BENCH_BASE", "")
    tables = {
        "enqueue": (_enqueued, ""), "process": (_drained, "process"), "thread": (_drained, "thread"),
        "async": (_drained, "async"), "idle": (_idle, ""), "fork": (_forked, "fork"),
    }  # fmt: skip
    figures: list[Figure] = []
    for name, (table, kind) in tables.items():
        if context.only and name not in context.only:
            continue
        rows: dict[str, Rows] = {}
        for at in dict.fromkeys((base, "")):
            context.say(f"parts: {name}{', base' if at else ''}")
            rows[at] = table(context, system_of(kind, at) if kind else replace(HEADRACE, env=path_to(at)))
        was = {row[0]: row[1] for row in rows[base]} if base else {}
        figures += [Figure(row[0], row[1], row[2], "base", was.get(row[0])) for row in rows[""]]
    return figures
