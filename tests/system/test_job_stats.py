"""What workers count of their jobs, as a reader finds it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.clusters import clock_shim
from tests.servers import Server
from tests.system.fleet import Fleet, NewFleet, NewServer


def test_workers_tell_what_became_of_jobs(fleet: Fleet) -> None:
    fleet.worker(processes=2)
    jobs = fleet.enqueue_many("process.nap", [(0.002,)] * 50)
    failing = fleet.enqueue("process.fail", 2, retries=2)
    hopeless = fleet.enqueue("process.fail", 9)
    for job in (*jobs, failing, hopeless):
        fleet.ended(job)
    fleet.workers[0].terminate()
    fleet.workers[0].wait()
    now = datetime.now(UTC)
    stats = fleet.app.stats

    def total(label: str) -> dict[str, int]:
        found = stats.find(label, now - timedelta(minutes=10), now + timedelta(minutes=2), every="minute").total()
        return {field: found[field] for field in ("enqueued", "started", "succeeded", "failed", "retried")}

    assert total("jobs/process.nap") == {"enqueued": 50, "started": 50, "succeeded": 50, "failed": 0, "retried": 0}
    assert total("jobs/process.fail") == {"enqueued": 2, "started": 4, "succeeded": 1, "failed": 1, "retried": 2}
    assert total("queues/default")["started"] == 54
    # Each job once, by task and by queue alike.
    assert total("jobs") == total("queues")
    assert total("jobs") == {"enqueued": 52, "started": 54, "succeeded": 51, "failed": 1, "retried": 2}
    assert {child.label for child in stats.find("", now).children()} == {"jobs", "queues", "workers"}
    naps = stats.find(
        "jobs/process.nap", now - timedelta(minutes=10), now + timedelta(minutes=2), every="minute"
    ).total()
    assert 0.0019 < naps.percentile("run", 50) < 1.0
    assert naps.percentile("wait", 99) > 0
    busy = stats.find("workers", now - timedelta(minutes=10), now + timedelta(minutes=2), every="minute").total()
    assert busy["busy"] > 50 * 2000


def test_counts_land_where_the_servers_clock_says(
    new_server: NewServer, new_fleet: NewFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They landed where the clock of the worker's machine said, and the job's arrival elsewhere."""
    monkeypatch.setattr(Server, "environment", {"LD_PRELOAD": str(clock_shim()), "HR_CLOCK": "-7200"})
    fleet = new_fleet(new_server().url)
    worker = fleet.worker()
    fleet.ended(fleet.enqueue("process.add", 1, 1))
    worker.terminate()
    worker.wait()
    there = datetime.now(UTC) - timedelta(hours=2)
    found = fleet.app.stats.find("jobs", there - timedelta(minutes=10), there + timedelta(minutes=10), every="minute")
    assert (found["enqueued"], found["started"], found["succeeded"]) == (1, 1, 1)
