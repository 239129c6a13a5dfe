"""A store is put back to a snapshot of an hour ago under a live fleet: no worker claims before an operator decides."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from headrace.protocol.keys import Keys
from tests.commands import Commands
from tests.servers import Server
from tests.system.fleet import NewFleet, NewServer

HOUR = 3600


@pytest.mark.parametrize("live", ["park", "run"])
def test_no_worker_claims_from_an_old_copy_before_the_word(
    new_server: NewServer, new_fleet: NewFleet, tmp_path: Path, live: str
) -> None:
    server, keys = new_server(), Keys()
    fleet = new_fleet(server.url, lease=6.0)
    fleet.forgetful = True
    # What it settled itself a worker settles again in the copy: here the one that ran the job has left.
    runs, worker = fleet.worker(), fleet.worker(queues="other")
    client = server.client()
    assert fleet.ended(fleet.enqueue("process.add", 1, 2)).result == 3
    fleet.app.queues["default"].pause()
    job = fleet.enqueue("process.add", 3, 4)
    client.save()
    shutil.copy(server.directory / "dump.rdb", tmp_path / "dump.rdb")
    fleet.app.queues["default"].resume()
    fleet.ended(job)
    runs.terminate()
    runs.wait()
    put_back(server, tmp_path / "dump.rdb")
    # As after a snapshot of a moment in which the queue was not paused.
    client.srem(keys("paused"), "default")
    fleet.until(lambda: "headrace restored --live park" in worker.errors.read_text())
    assert client.exists(keys("copy"))
    later = fleet.worker(ready=False)
    fleet.until(lambda: "headrace restored --live park" in later.errors.read_text())
    assert len(fleet.ledger.starts(job.id)) == 1
    headrace = Commands(tmp_path, server.url)
    found = {row["id"]: row for row in headrace("doctor", "keyspace", "--json", code=1, HEADRACE_LEASE="6").lines}
    assert found["restored"]["command"] == "headrace restored --live park, or run"
    told = json.loads(headrace("restored", "--live", live, "--json").out)
    assert HOUR - 60 < told["lost"] < HOUR + 60
    (evidence,) = found["restored"]["evidence"]
    assert evidence.endswith(f"the last {told['lost']:.0f} s were lost")
    if live == "run":
        fleet.started(job, 2)
        fleet.ended(job)
    else:
        assert told["paused"] == ["default", "other"]
        fleet.until(lambda: fleet.registered(later))
        assert len(fleet.ledger.starts(job.id)) == 1
        assert job.refresh().state.value == "ready"
        job.cancel()
        fleet.app.queues["default"].resume()
        assert fleet.ended(fleet.enqueue("process.add", 5, 6)).result == 11
        assert len(fleet.ledger.starts(job.id)) == 1
    assert "was not put back" in headrace("restored", "--live", "run", code=1).err
    assert "restored" not in headrace("doctor", "keyspace", "--json", code=None, HEADRACE_LEASE="6").out
    fleet.end()


def put_back(server: Server, dump: Path) -> None:
    """Have the server begin anew with a snapshot, as if that were an hour old."""
    server.kill()
    other = Server(server.binary)
    try:
        other.kill()
        shutil.copy(dump, other.directory / "dump.rdb")
        other.start()
        client = other.client()
        leases = client.zrange(Keys()("owners"), 0, -1, withscores=True)
        client.zadd(Keys()("owners"), {owner: until - HOUR * 1_000_000 for owner, until in leases})
        client.save()
        shutil.copy(other.directory / "dump.rdb", server.directory / "dump.rdb")
    finally:
        other.stop()
    server.start()
