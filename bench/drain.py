"""Drain: a worker with one process runs no-op jobs that were enqueued before it started.

The rate is taken from the first sample in which fewer jobs are unsettled than were enqueued to the first
in which none is: start-up is left out, the last settle is in. The floor, Headrace and every peer are
sampled by the same code.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench import tally
from bench.context import Context
from bench.figure import Bar, Figure
from bench.processes import BenchError, Group
from bench.servers import Server, Work, server
from bench.systems import FLOOR, FLOOR_BARE, FLOOR_ONE, HEADRACE, System


@dataclass(frozen=True, slots=True)
class Drained:
    """What one drain cost, per job; processor times in microseconds, samples already taken off.

    Attributes:
        rate: jobs a second.
        trips: requests read by the server, from the worker's start on.
        commands: commands that the server executed, those in scripts included, from the worker's start on.
        server: processor time of the server, enqueue to settle.
        worker: processor time of the worker's processes while the queue shrank.
    """

    rate: float
    trips: float
    commands: float
    server: float
    worker: float | None


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a drain in which jobs were settled."""

    jobs: int
    seconds: float
    worker: float | None
    samples: int


class Sampler:
    """Asks the server how many jobs are unsettled, and knows what a question costs the server."""

    def __init__(self, target: Server, source: str) -> None:
        self._ask = target.client.register_script(source)
        self._target = target
        self.samples = 0
        self.left()
        before = target.work()
        for _ in range(200):
            self.left()
        self._cost = target.work() - before
        self.samples = 0

    def left(self) -> int:
        self.samples += 1
        return int(self._ask())

    def spent(self, before: Work, after: Work) -> Work:
        """The server's work between two readings, less what this sampler and the second reading asked."""
        share = self.samples / 200
        work, cost = after - before, self._cost
        return Work(
            work.cpu - cost.cpu * share,
            work.commands - cost.commands * share,
            work.trips - cost.trips * share,
            0,
        )


def _watch(sampler: Sampler, jobs: int, worker: Group) -> Window:
    """Sample until nothing is left.

    Raises:
        BenchError: nothing was settled for 60 s, or the worker ended.
    """
    pause = 0.005 if jobs >= 10_000 else 0.02
    least, moved = jobs, time.monotonic()
    first: tuple[float, int, float | None] | None = None
    while True:
        left, now = sampler.left(), time.perf_counter()
        if left < jobs and first is None:
            first = (now, left, worker.cpu())
        if left == 0 and first is not None:
            spent = worker.cpu()
            cpu = None if spent is None or first[2] is None else spent - first[2]
            return Window(first[1], now - first[0], cpu, sampler.samples)
        if left < least:
            least, moved = left, time.monotonic()
        elif time.monotonic() - moved > 60:
            raise BenchError(f"no job was settled for 60 s, {left} of {jobs} are left: {worker.said()}")
        worker.check()
        time.sleep(pause)


def measure(context: Context, system: System) -> Drained:
    jobs = context.scaled(system.jobs)
    with server() as target:
        sampler = Sampler(target, system.unsettled)
        start = target.work()
        context.produce(system, target, "bulk", jobs)
        enqueued = target.work()
        if (found := sampler.left()) != jobs:
            raise BenchError(f"{system.name}: {jobs} jobs were enqueued, the server knows of {found}")
        sampler.samples = 0
        with context.worker(system, target) as worker:
            window = _watch(sampler, jobs, worker)
            work = sampler.spent(enqueued, target.work())
        # The floor has no jobs to run: what it leased it acknowledges.
        if system.module != FLOOR.module and (wrong := tally.miscount(target.tally, jobs)):
            raise BenchError(wrong)
    cpu = (enqueued - start).cpu + work.cpu
    return Drained(
        rate=window.jobs / window.seconds,
        trips=work.trips / jobs,
        commands=work.commands / jobs,
        server=cpu / jobs,
        worker=None if window.worker is None else 1e6 * window.worker / window.jobs,
    )


#: What is told of each drain: the words, the field of Drained, the unit, and Headrace's bar.
_TOLD = (
    ("drain", "rate", "jobs/s", Bar("at least", 0.35, "ratio")),
    ("drain, trips per job", "trips", "trips", Bar("at most", 0.05)),
    ("drain, commands per job", "commands", "commands", Bar("at most", 8)),
    ("drain, server CPU per job", "server", "µs", None),
    ("drain, worker CPU per job", "worker", "µs", Bar("at most", 50)),
)


def _figures(system: System, got: Drained, floor: Drained) -> list[Figure]:
    figures: list[Figure] = []
    for words, part, unit, bar in _TOLD:
        reference = None if system is FLOOR else getattr(floor, part)
        ours = bar if system is HEADRACE else None
        note = "loses the running job on a kill" if part == "rate" and not system.survives else ""
        figures.append(Figure(f"{words}: {system.name}", getattr(got, part), unit, "floor", reference, ours, note))
    if system is HEADRACE:
        more = got.server - floor.server
        bar = Bar("at most", 25)
        figures.append(Figure("drain, server CPU over the floor's: Headrace", more, "µs", bar=bar))
    return figures


def run(context: Context) -> list[Figure]:
    """Rates, round trips, commands and processor time per job, of the floor and of every system."""
    drained = context.each((FLOOR, FLOOR_ONE, FLOOR_BARE, *context.systems()), "drain", measure)
    floor = drained[FLOOR]
    figures = [figure for system, got in drained.items() for figure in _figures(system, got, floor)]
    peers = {system: got.rate for system, got in drained.items() if system.peer}
    if HEADRACE in drained and peers:
        best = max(peers, key=lambda system: peers[system])
        ours = drained[HEADRACE].rate
        bar = Bar("at least", 8, "ratio")
        figures.append(Figure("drain: Headrace against the best peer", ours, "jobs/s", best.name, peers[best], bar))
    return figures
