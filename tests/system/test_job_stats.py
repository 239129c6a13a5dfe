"""What workers count of their jobs, as a reader finds it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.system.fleet import Fleet


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
    stats = fleet.app.stats.scope("jobs")

    def total(label: str) -> dict[str, int]:
        found = stats.find(label, now - timedelta(minutes=10), now + timedelta(minutes=2), every="minute").total()
        return {field: found[field] for field in ("enqueued", "started", "succeeded", "failed", "retried")}

    assert total("task/process.nap") == {"enqueued": 50, "started": 50, "succeeded": 50, "failed": 0, "retried": 0}
    assert total("task/process.fail") == {"enqueued": 2, "started": 4, "succeeded": 1, "failed": 1, "retried": 2}
    assert total("queue/default")["started"] == 54
    naps = stats.find(
        "task/process.nap", now - timedelta(minutes=10), now + timedelta(minutes=2), every="minute"
    ).total()
    assert 0.0019 < naps.percentile("run", 50) < 1.0
    assert naps.percentile("wait", 99) > 0
    busy = stats.find("worker", now - timedelta(minutes=10), now + timedelta(minutes=2), every="minute").total()
    assert busy["busy"] > 50 * 2000
