"""Browsers and programs that read the changes of a job which a worker runs."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from headrace import Headrace, Record
from headrace.contrib.asgi import jobs_site
from headrace.protocol.keys import keys_of
from headrace.store import end_listener
from tests.sites.test_sites import app, mounted, served
from tests.system.fleet import Fleet

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]
__all__ = ["app"]


def test_a_browser_reads_the_changes_of_a_job_to_its_end(fleet: Fleet, app: Headrace, tmp_path: Path) -> None:
    fleet.worker()
    go = tmp_path / "go"
    job = fleet.enqueue("process.say", str(go))
    with served(mounted("starlette", jobs_site(app, authorize=lambda request, record: True))) as ask:
        fleet.until(lambda: job.refresh().progress == 0.5)
        go.touch()
        status, body = ask("GET", f"/jobs/{job.id}/events")
        events = body.decode().split("\n\n")[:-1]
        assert (status, events[-1].splitlines()[1]) == (200, "event: end")
        assert json.loads(events[-1].partition("data: ")[2])["state"] == "succeeded"
        last = events[-1].splitlines()[0].removeprefix("id: ")
        assert ask("GET", f"/jobs/{job.id}/events", **{"Last-Event-ID": last}) == (200, b"")


def test_changes_of_a_job_are_pushed_and_numbered(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_listener, "RECHECK", 3600.0)
    go = tmp_path / "go"
    job = fleet.enqueue("process.say", str(go))
    seen: list[Record] = []
    for record in job.events():
        seen.append(record)
        if record.state == "ready":
            fleet.worker()
        if record.progress == 0.5:
            assert (record.progress_text, record.progress_data) == ("half", {"done": [1, "one"]})
            go.touch()
    assert (seen[0].state, seen[-1].state) == ("ready", "succeeded")
    assert (seen[-1].progress, seen[-1].progress_data) == (1.0, None)
    assert 0.5 in [record.progress for record in seen]
    numbers = [int(record.version.partition("-")[0]) for record in seen]
    assert (numbers, numbers[0], numbers[-1]) == (sorted(numbers), 0, 2)

    async def again(after: str) -> list[str]:
        return [str(record.state) async for record in job.aevents(after)]

    assert asyncio.run(again(seen[-2].version)) == ["succeeded"]
    assert asyncio.run(again(seen[-1].version)) == []


def test_a_hundred_readers_of_changes_share_one_connection(fleet: Fleet, tmp_path: Path, client: redis.Redis) -> None:
    fleet.worker()
    go = tmp_path / "go"
    job = fleet.enqueue("process.say", str(go))
    halves = threading.Semaphore(0)

    def read() -> list[Record]:
        found: list[Record] = []
        for record in job.events():
            found.append(record)
            if record.progress == 0.5:
                halves.release()
        return found

    with ThreadPoolExecutor(100) as threads:
        reads = [threads.submit(read) for _ in range(100)]
        assert all(halves.acquire(timeout=60) for _ in range(100))
        assert client.pubsub_numsub(keys_of("hr").done(job.id))[0][1] == 1
        go.touch()
        assert {found.result()[-1].state for found in reads} == {"succeeded"}
