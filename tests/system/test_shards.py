"""One queue over several shards, each on a server of its own, from the producer to the result."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Headrace
from headrace.errors import JobFailed
from headrace.model.ids import shard_of
from headrace.testing import assert_invariants
from tests.commands import Commands
from tests.deadline import eventually
from tests.program import Worker
from tests.servers import Server

pytestmark = pytest.mark.system

COUNT = 3
TASKS = """
from headrace import Headrace

app = Headrace(lease=2)

@app.task
def add(x: int, y: int = 1) -> int:
    return x + y

@app.task
def fail() -> None:
    raise ValueError("boom")
"""


class Sharded:
    """Programs and a producer of one store, with a server for each shard."""

    def __init__(self, directory: Path, servers: list[Server]) -> None:
        self.servers = servers
        url = " ".join(server.url for server in servers)
        self.program = Commands(directory, url)
        self.program.write("tasks", TASKS)
        self.app = Headrace(url, timeout=20)

    def task(self, name: str) -> Any:
        return self.app.by_name(f"tasks.{name}")


@pytest.fixture
def sharded(new_server: Callable[..., Server], tmp_path: Path) -> Iterator[Sharded]:
    made = Sharded(tmp_path, [new_server() for _ in range(COUNT)])
    yield made
    made.app.close()


def test_a_worker_of_several_shards_reloads_and_stops_while_it_works(sharded: Sharded) -> None:
    """Jobs of all shards run once and tell their results; a bulk operation is done on all, and told as one."""
    app, add, program = sharded.app, sharded.task("add"), sharded.program
    later = [add.options(delay=3600).enqueue(n) for n in range(60)]
    jobs = [add.enqueue(n) for n in range(100)]
    assert {shard_of(job.id) for job in jobs} == {shard_of(job.id) for job in later} == {0, 1, 2}
    worker = Worker(program.start("worker", "tasks:app", "--processes", "2", "--reload=hup"))
    try:
        worker.says("serves default")
        worker.process.send_signal(signal.SIGHUP)
        eventually(lambda: sum("serves default" in line for line in worker.lines) == 2 * COUNT, 60)
        jobs += [add.enqueue(n) for n in range(100)]
        assert [job.result(timeout=60) for job in jobs] == [*range(1, 101)] * 2
        asyncio.run(_wait_on_a_loop(add))
        with pytest.raises(JobFailed, match="boom"):
            sharded.task("fail").options(retries=0).enqueue().result(timeout=60)
        program("jobs", "cancel", "--all", "--state", "scheduled", "--yes", "--detach")
        eventually(lambda: not any(one.running for one in app.bulk.page()), 60)
        (one,) = app.bulk.page()
        assert (one.state, one.progress.done, one.progress.ended) == ("succeeded", 60, 1)
        (live,) = app.overview().live
        assert live.queues == ("default",)
        program("workers", "stop", live.place)
        assert worker.ended() == 0
    finally:
        worker.close()
    assert {(record.attempt, record.crashes) for record in (job.refresh() for job in jobs)} == {(1, 0)}
    assert {job.refresh().state for job in later} == {"cancelled"}
    assert not app.overview().live
    for server in sharded.servers:
        assert_invariants(server.client())


async def _wait_on_a_loop(add: Any) -> None:
    jobs = [await add.aenqueue(n) for n in range(12)]
    assert [await job.aresult(timeout=60) for job in jobs] == [n + 1 for n in range(12)]


def test_the_command_lists_shards_and_names_those_without_a_worker_or_an_answer(sharded: Sharded) -> None:
    jobs = [sharded.task("add").enqueue(n) for n in range(30)]
    counts = Counter(shard_of(job.id) for job in jobs)
    rows = sharded.program("shards", "--json").lines
    assert [(row["shard"], row["ready"], row["workers"]) for row in rows] == [(n, counts[n], 0) for n in range(COUNT)]
    assert "no worker serves shard 0, 1, 2" in sharded.program("shards").err
    sharded.servers[2].kill()
    assert "shard 2 does not answer" in sharded.program("shards").err
