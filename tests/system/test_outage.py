"""A server that was away for everybody is nobody's crash."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from headrace.model.job import State
from headrace.model.job_record import Record
from headrace.tasks.job_handle import Job
from tests.servers import Server
from tests.system.fleet import Fleet, NewFleet, NewServer

LEASE = 6.0


def freeze(fleet: Fleet, server: Server, leases: float) -> None:
    """Stop the server's process for so long."""
    end = time.monotonic() + leases * LEASE
    os.kill(server.pid, signal.SIGSTOP)
    try:
        fleet.until(lambda: time.monotonic() >= end)
    finally:
        os.kill(server.pid, signal.SIGCONT)


def occupy(fleet: Fleet, server: Server, leases: float) -> None:
    """Have another program's script keep the server busy for so long; meanwhile it answers BUSY."""
    # Time stands still within a script, so another connection ends it.
    end = time.monotonic() + leases * LEASE
    with redis.Redis.from_url(server.url) as killer, redis.Redis.from_url(server.url, socket_timeout=None) as other:
        loop = threading.Thread(target=_loop, args=(other,))
        loop.start()
        fleet.until(lambda: time.monotonic() >= end)
        killer.execute_command("SCRIPT", "KILL")
        loop.join()


def _loop(client: redis.Redis) -> None:
    with contextlib.suppress(redis.ResponseError):
        client.eval("while true do end", 0)


def running(fleet: Fleet, jobs: list[Job[int]]) -> bool:
    """Whether all of them run, and every worker has renewed its lease."""
    seen = fleet.app.overview()
    return seen.states.get("running", 0) == len(jobs) and all(worker.lease > seen.now for worker in seen.workers)


@pytest.mark.slow
@pytest.mark.parametrize(("away", "leases"), [(freeze, [0.8, 3.0]), (occupy, [1.2])])
def test_an_outage_charges_nobody(
    new_server: NewServer, new_fleet: NewFleet, tmp_path: Path, away: Callable[..., None], leases: list[float]
) -> None:
    server = new_server(config={"lua-time-limit": "100"})
    fleet = new_fleet(server.url, lease=LEASE)
    for _ in range(2):
        fleet.worker(processes=3)
    jobs = fleet.enqueue_many("process.gate", [(str(tmp_path / "go"),)] * 6)
    starts = 6
    fleet.until(lambda: running(fleet, jobs) and len(fleet.ledger.starts()) >= starts)
    for length in leases:
        away(fleet, server, length)
        # Both workers have stopped their jobs before their leases ended, and all run again.
        starts += 6 if length > 1 else 0
        fleet.until(lambda starts=starts: running(fleet, jobs) and len(fleet.ledger.starts()) >= starts)
    (tmp_path / "go").touch()
    records: list[Record] = [fleet.ended(job) for job in jobs]
    assert {record.state for record in records} == {State.SUCCEEDED}
    assert {(record.crashes, record.failures) for record in records} == {(0, 0)}, repr(fleet)
    fleet.end()
    fleet.check()
