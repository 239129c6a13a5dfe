"""What uses the private server finds it again after its guard and it were killed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
import redis

from headrace import Headrace, embedded
from tests.deadline import eventually


@pytest.fixture
def app(tmp_path: Path) -> Headrace:
    return Headrace(dir=str(tmp_path / "private"), linger=0.1)


def kill_everything(directory: Path) -> None:
    with embedded.attach(directory) as handle, redis.Redis.from_url(handle.url, protocol=2) as client:
        # While it syncs its file, which may take a slow disk long, a server holds back what it has yet to write there.
        eventually(lambda: client.info("persistence")["aof_buffer_length"] == 0, what="all is written to its file")
    seen = embedded.status(directory)
    assert seen.guard
    assert seen.pid
    os.kill(seen.guard, signal.SIGKILL)
    os.kill(seen.pid, signal.SIGKILL)
    eventually(lambda: not embedded.status(directory).running, what="the end of the private server")


def test_a_client_brings_the_server_back_with_its_jobs(app: Headrace, tmp_path: Path) -> None:
    with app:
        job = app.by_name("tasks.later").enqueue(1)
        kill_everything(tmp_path / "private")
        assert app.jobs.get(job.id).state == "ready"


def test_an_asynchronous_client_does_so_too(app: Headrace, tmp_path: Path) -> None:
    async def story() -> None:
        job = await app.by_name("tasks.later").aenqueue(1)
        await asyncio.to_thread(kill_everything, tmp_path / "private")
        assert await (await app.jobs.aget(job.id)).astate() == "ready"
        await app.aclose()

    asyncio.run(story())
