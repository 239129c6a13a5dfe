"""The soak: everything is killed at random, and every job ends once."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from headrace import Headrace
from headrace.admin.doctor import KeyspaceDoctor
from headrace.errors import HeadraceError
from headrace.model.environment import Finding
from tests.servers import Server, connect
from tests.system.chaos import BUDGET, Chaos, verdict
from tests.system.fleet import Fleet

NewFleet = Callable[..., Fleet]
NewServer = Callable[..., Server]
SEED = int(os.environ.get("HR_SEED", "20241"))
# Seconds of kills in the long one: HR_SOAK=3600 is an hour.
LENGTH = int(os.environ.get("HR_SOAK", "900"))
# Fewer and longer jobs, for a machine that has other work: 350,000 of at most 0.085 s last for an hour, too.
JOBS = int(os.environ.get("HR_JOBS", str(550 * LENGTH)))
NAP = float(os.environ.get("HR_NAP", "0.004"))

LASTING = {"job", "succeeded", "expires", "totals", "token", "schema", "queues", "sender", "owners", "wake"}
LASTING |= {"stat", "stat-sub", "shard"}
# A dispatcher that was killed last keeps its lease, and so these two: fleet.check() finds any without a lease.
LASTING |= {"owner", "tasks"}
# What failed or changed, for a week, and which workers died, for an hour.
LASTING |= {"events", "deaths"}
# Which queues are paused, as each dispatcher's cache read it.
LASTING |= {"cache", "cached", "leases"}
# The minute whose backlog was counted, for two minutes.
LASTING |= {"sampled"}


def say(text: str) -> None:
    """Shown with the failure, or by ``pytest -s``."""
    sys.stdout.write(f"{text}\n")


@contextlib.contextmanager
def looking(server: Server) -> Iterator[list[list[Finding]]]:
    """Have the doctor walk the store again and again; what each walk that was not cut off by a restart has found."""
    walks: list[list[Finding]] = []
    over = threading.Event()

    def walk() -> None:
        # Its share is larger than an operator's: more walks meet more kills.
        while not over.is_set():
            with contextlib.suppress(HeadraceError, redis.RedisError), Headrace(server.url, lease=2.0) as app:
                with connect(server.url) as client:
                    found = KeyspaceDoctor(app.client, client, share=0.3).run()
                walks.append(found)
                say(f"{time.strftime('%X')} walk {len(walks)}: {walks[-1] or 'nothing is wrong'}")
            over.wait(0.5)

    thread = threading.Thread(target=walk)
    thread.start()
    try:
        yield walks
    finally:
        over.set()
        thread.join()


def _soak(
    new_server: NewServer,
    new_fleet: NewFleet,
    count: int,
    seconds: float,
    restarts: int,
    every: float,
    nap: float = 0.004,
) -> None:
    server = new_server(append_only=True)
    fleet = new_fleet(server.url, lease=2.0, result_ttl=86_400, max_finished=10 * count)
    say(f"seed {SEED} (HR_SEED chooses another)")
    dice = random.Random(SEED)
    # From nothing to some ms, so that some are sent ahead and some run when the kill comes.
    naps = [round(dice.random() * nap, 6) for _ in range(count)]
    jobs = fleet.enqueue_many("process.nap", [(nap,) for nap in naps], max_crashes=BUDGET)
    chaos = Chaos(fleet, server, SEED)
    with looking(server) as walks:
        chaos.run(count, seconds, restarts, every)
    say(f"the doctor walked {len(walks)} times beside {chaos.deaths.counts}")
    assert [found for walk in walks for found in walk] == []
    # However slow the machine is, and by four at once: what counts comes after.
    fleet.drained(max(120, count / 100, count * nap / 4))
    facts = verdict(fleet, jobs, chaos.deaths)
    say(str({**facts, **chaos.deaths.counts}))
    assert chaos.deaths.total >= 8
    step = count // 200
    assert [job.result(timeout=1) for job in jobs[::step]] == naps[::step]
    for worker in chaos.workers:
        worker.terminate()
    for worker in fleet.workers:
        worker.wait(60)
    fleet.check()
    with connect(server.url) as client:
        keys = {key.decode().partition("}:")[2].partition(":")[0] for key in client.scan_iter(count=1000)}
    # All that is left: the finished jobs, their indexes, and what the store says of itself.
    assert keys <= LASTING


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_ten_thousand_jobs_survive_every_kind_of_kill(new_server: NewServer, new_fleet: NewFleet) -> None:
    _soak(new_server, new_fleet, count=10_000, seconds=30, restarts=1, every=0.35)


@pytest.mark.soak
@pytest.mark.timeout(2 * LENGTH + 600)
def test_half_a_million_jobs_survive_minutes_of_kills(new_server: NewServer, new_fleet: NewFleet) -> None:
    restarts = max(1, LENGTH // 90)
    _soak(new_server, new_fleet, count=JOBS, seconds=LENGTH, restarts=restarts, every=1.5, nap=NAP)
