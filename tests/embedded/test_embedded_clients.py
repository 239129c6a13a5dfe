"""What uses the private server finds it again after its guard and it were killed, or its directory was removed."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis

from headrace import Headrace, embedded
from tests.deadline import eventually
from tests.program import Program, Worker


@pytest.fixture
def app(tmp_path: Path) -> Headrace:
    return Headrace(dir=str(tmp_path / "private"), embedded_idle_timeout=0.1, timeout=30)


def kill_everything(directory: Path) -> None:
    with embedded.attach(directory) as handle, redis.Redis.from_url(handle.url, protocol=2) as client:
        # While it syncs its file, which may take a slow disk long, a server holds back what it has yet to write there.
        eventually(lambda: client.info("persistence")["aof_buffer_length"] == 0, what="all is written to its file")
    seen = embedded.status(directory)
    assert seen.pid
    os.kill(psutil.Process(seen.pid).ppid(), signal.SIGKILL)
    os.kill(seen.pid, signal.SIGKILL)
    eventually(lambda: not embedded.status(directory).running, what="the end of the private server")


def remove(directory: Path) -> None:
    """Its users may write a file there while the others are removed."""
    eventually(lambda: shutil.rmtree(directory, ignore_errors=True) or not directory.exists(), every=0)


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


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Program]:
    """A project without a URL, and its private server."""
    project = Program(tmp_path, None)
    project.environment["HEADRACE_TIMEOUT"] = "20"
    yield project
    embedded.stop(tmp_path / ".headrace")


def test_a_worker_and_a_program_start_a_killed_server_and_lose_no_job(project: Program) -> None:
    directory = project.directory / ".headrace"
    worker = Worker(project.start("worker", "tasks:app", "--processes", "1"))
    try:
        with Headrace(dir=str(directory), timeout=30) as producer:
            jobs = [producer.by_name("tasks.add").enqueue(0)]
            for n in range(1, 4):
                old = embedded.status(directory).pid
                assert old
                os.kill(old, signal.SIGKILL)
                jobs += [producer.by_name("tasks.add").enqueue(n) for _ in range(20)]
                assert [job.result(timeout=60) for job in jobs[-20:]] == [n + 1] * 20
                assert embedded.status(directory).pid not in (None, old)
            assert len(producer.overview().workers) == 1
        assert worker.stop() == 0
    finally:
        worker.close()


def test_programs_of_a_directory_that_was_removed_come_together_on_one_server(project: Program) -> None:
    directory = project.directory / ".headrace"
    worker = Worker(project.start("worker", "tasks:app", "--processes", "1"))
    try:
        with Headrace(dir=str(directory), timeout=30) as producer:
            assert producer.by_name("tasks.add").enqueue(1).result(timeout=60) == 2
            old = embedded.status(directory).pid
            remove(directory)
            # A program that starts then makes a directory and a server: all others must come to that one.
            id = project.enqueue("tasks.add", "2")
            worker.says("was removed or moved while programs used it")
            eventually(lambda: not psutil.pid_exists(old or 0), what="the end of the server that lost its directory")
            assert producer.by_name("tasks.add").enqueue(3).result(timeout=60) == 4
            assert producer.jobs.get(id).result(timeout=60) == 3
            assert embedded.status(directory).pid != old
            assert len(producer.overview().workers) == 1
        assert worker.stop() == 0
        said = "".join(worker.lines)
        assert said.count("was removed or moved") == 1
        assert "refused the credentials" not in said
    finally:
        worker.close()


def test_an_asynchronous_client_follows_to_the_new_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "private"

    async def story() -> None:
        app = Headrace(dir=str(directory), embedded_idle_timeout=0.1, timeout=30)
        await app.by_name("tasks.later").aenqueue(1)
        old = embedded.status(directory).pid
        await asyncio.to_thread(remove, directory)
        eventually(lambda: not psutil.pid_exists(old or 0), what="the end of the server that lost its directory")
        with embedded.attach(directory, idle_timeout=0.1):
            job = await app.by_name("tasks.later").aenqueue(1)
            with Headrace(dir=str(directory), timeout=30) as newcomer:
                assert newcomer.jobs.get(job.id).state == "ready"
        await app.aclose()

    asyncio.run(story())
    assert "was removed or moved" in caplog.text


# The directory is gone before the command begins.
REMOVED = 'rmdir "$PWD" && exec "$0" "$@"'


def test_a_command_in_a_directory_that_was_removed_says_so(project: Program, tmp_path: Path) -> None:
    for command in (["queues", "list"], ["enqueue", "tasks.add", "1"], ["server", "status"], ["worker", "tasks:app"]):
        gone = tmp_path / "gone"
        gone.mkdir()
        run = subprocess.run(
            ["/bin/sh", "-c", REMOVED, sys.executable, "-m", "headrace", *command],
            cwd=gone, env=project.environment | {"PWD": str(gone)}, text=True, capture_output=True, timeout=60,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert (run.stdout, run.stderr.count("\n")) == ("", 1), run.stderr
        assert "the current directory was removed" in run.stderr
