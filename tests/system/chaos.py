"""A soak: many jobs over several workers while every role is killed at random and the server is restarted.

Owns the dice (a seed, printed) and the verdict: what the ledger and the store must say of each other afterwards.
"""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass, field

import psutil

from headrace.model.job import State
from headrace.model.job_record import Record
from headrace.protocol import produce
from headrace.tasks.job_handle import Job
from tests.servers import Server
from tests.system.fleet import Fleet, Worker, send

ROLES = ("runner", "runner", "runner", "dispatcher", "supervisor", "worker")
BUDGET = 50


@dataclass
class Deaths:
    """How many of each role were killed."""

    counts: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, role: str) -> None:
        self.counts[role] = self.counts.get(role, 0) + 1

    @property
    def total(self) -> int:
        return sum(self.counts.values())


class Chaos:
    """Kills, by the dice, until the jobs are done or the time is over; then lets what is left finish in peace."""

    def __init__(
        self, fleet: Fleet, server: Server, seed: int, workers: int = 2, environ: dict[str, str] | None = None
    ) -> None:
        self.fleet = fleet
        self.environ = environ
        self.server = server
        self.dice = random.Random(seed)
        self.deaths = Deaths()
        self.workers = [self._worker() for _ in range(workers)]

    def _worker(self) -> Worker:
        return self.fleet.worker(processes=2, ready=False, environ=self.environ)

    def run(self, jobs: int, seconds: float, restarts: int, every: float) -> None:
        """Kill about once in ``every`` seconds; the server ``restarts`` times, at even shares of work or time."""
        begin, next_kill, restarted = time.monotonic(), time.monotonic() + every, 0
        end = begin + seconds
        while (left := self._left()) and time.monotonic() < end:
            done = max(1 - left / jobs, (time.monotonic() - begin) / seconds)
            if restarted < restarts and done > (restarted + 1) / (restarts + 1):
                self.server.restart()
                restarted += 1
            if time.monotonic() >= next_kill:
                self._kill()
                next_kill = time.monotonic() + every * self.dice.uniform(0.5, 1.5)
            until = min(time.monotonic() + 0.1, next_kill)
            self.fleet.until(lambda until=until: time.monotonic() >= until)
        assert restarted == restarts, "the work was over before the server was restarted"

    def _left(self) -> int:
        states = self.fleet.app.overview().states
        return sum(states.get(state, 0) for state in ("scheduled", "ready", "running"))

    def _kill(self) -> None:
        role = self.dice.choice(ROLES)
        worker = self.dice.choice(self.workers)
        try:
            pids = {"runner": worker.runners, "dispatcher": lambda: [worker.dispatcher()]}.get(role, lambda: [1])()
        except (AssertionError, psutil.NoSuchProcess):
            return
        if not pids:
            return
        if role == "runner":
            send([self.dice.choice(pids)], signal.SIGKILL)
        else:
            worker.kill(role)
        self.deaths.add(role)
        if not worker.alive:
            self.workers[self.workers.index(worker)] = self._worker()


def verdict(fleet: Fleet, jobs: list[Job[float]], deaths: Deaths) -> dict[str, int]:
    """Compare the store with the ledger.

    No job is lost, none completes twice, each starts at most once more than its record explains, in all no more than
    the deaths can explain.
    """
    starts, ends = fleet.ledger.counts("S"), fleet.ledger.counts("E")
    records: list[Record | None] = []
    for first in range(0, len(jobs), 500):
        ids = [job.id for job in jobs[first : first + 500]]
        records += fleet.app.client.run(produce.read(fleet.app.client.keys, ids))
    lost = [job.id for job, record in zip(jobs, records, strict=True) if record is None]
    assert not lost, f"{len(lost)} acknowledged jobs are gone: {lost[:5]}"
    repeated = 0
    for record in records:
        assert record is not None
        assert record.state is State.SUCCEEDED, f"{record.id} is {record.state}: {record.error}"
        assert record.failures == 0
        assert ends[record.id] >= 1, f"{record.id} succeeded, but never ended"
        bound = 1 + record.crashes + record.interruptions
        assert 1 <= starts[record.id] <= bound, (
            f"{record.id} started {starts[record.id]} times, at most {bound} explained"
        )
        repeated += starts[record.id] - 1
    return {
        "jobs": len(jobs),
        "starts": sum(starts.values()),
        "repeated": repeated,
        "crashes": sum(record.crashes for record in records if record),
        "deaths": deaths.total,
    }
