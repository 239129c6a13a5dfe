"""A server loses everything while workers and programs go on: FLUSHALL, or a restart of one that keeps no file."""

from __future__ import annotations

from pathlib import Path

from headrace.model.job import State
from headrace.protocol.keys import SCHEMA
from tests.system.fleet import NewFleet, NewServer


def test_a_worker_marks_the_layout_of_a_store_that_lost_everything(new_server: NewServer, new_fleet: NewFleet) -> None:
    """Without the mark a migration would take the store for an empty one, and other code for one of its own layout."""
    server = new_server()
    fleet = new_fleet(server.url, lease=6.0)
    fleet.worker()
    fleet.forgetful = True
    server.restart()
    assert fleet.ended(fleet.enqueue("process.add", 1, 2)).state is State.SUCCEEDED
    assert server.client().get(fleet.app.client.keys("schema")) == str(SCHEMA).encode()
    fleet.end()
    fleet.check()


def test_limits_and_schedules_of_the_code_come_back(new_server: NewServer, new_fleet: NewFleet, tmp_path: Path) -> None:
    server = new_server()
    fleet = new_fleet(server.url, lease=6.0)
    fleet.worker(environ={"HR_LIMITS": str(tmp_path), "HR_EVERY": "1"})
    fleet.until(lambda: fleet.ledger.counts("E"))
    fleet.forgetful = True
    server.owner.flushall()
    limits = [fleet.app.client.keys(f"limit:{name}") for name in ("pair", "each", "paced")]
    fleet.until(lambda: server.owner.exists(*limits) == 3)
    ticked = len(fleet.ledger.ends())
    fleet.until(lambda: len(fleet.ledger.ends()) > ticked + 1)
    assert fleet.ended(fleet.enqueue("limited.each", "a", 0.0)).state is State.SUCCEEDED
    fleet.end()
    fleet.check()


def test_jobs_that_a_server_forgot_wholly_are_told_in_one_line(new_server: NewServer, new_fleet: NewFleet) -> None:
    """Each has a settle of its own, which the worker tells again; a failover of seconds brings thousands."""
    server = new_server(append_only=True)
    fleet = new_fleet(server.url)
    worker = fleet.worker()
    fleet.forgetful = True
    size = server.written
    for number in range(20):
        fleet.ended(fleet.enqueue("process.add", number, 1))
    server.forget(size)
    fleet.until(lambda: "refused, since" in worker.log())
    assert fleet.ended(fleet.enqueue("process.add", 1, 1)).state is State.SUCCEEDED
    (line,) = (line for line in worker.log().splitlines() if "refused, since" in line)
    assert "20 jobs, such as" in line
    fleet.end()
    fleet.check()
