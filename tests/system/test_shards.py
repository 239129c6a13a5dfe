"""One queue over several shards, from the producer to the result: each on a server of its own, and on a cluster."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot  # type: ignore[attr-defined]

from headrace import Headrace
from headrace.errors import JobFailed
from headrace.model.ids import shard_of
from headrace.testing import assert_invariants
from tests.clusters import Cluster
from tests.commands import Commands
from tests.deadline import eventually
from tests.program import Worker
from tests.servers import Server

pytestmark = pytest.mark.system

COUNT = 3
TASKS = """
from headrace import Headrace

app = Headrace()

@app.task
def add(x: int, y: int = 1) -> int:
    return x + y

@app.task
def fail() -> None:
    raise ValueError("boom")
"""


class Sharded:
    """Programs and a producer of one store."""

    def __init__(self, directory: Path, url: str) -> None:
        self.program = Commands(directory, url)
        self.program.write("tasks", TASKS)
        self.app = Headrace(url, timeout=20)

    def task(self, name: str) -> Any:
        return self.app.by_name(f"tasks.{name}")


@pytest.fixture
def servers(new_server: Callable[..., Server]) -> list[Server]:
    return [new_server() for _ in range(COUNT)]


@pytest.fixture
def sharded(servers: list[Server], tmp_path: Path) -> Iterator[Sharded]:
    made = Sharded(tmp_path, " ".join(server.url for server in servers))
    yield made
    made.app.close()


def test_a_worker_of_several_shards_reloads_and_stops_while_it_works(sharded: Sharded, servers: list[Server]) -> None:
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
    for server in servers:
        assert_invariants(server.client())


async def _wait_on_a_loop(add: Any) -> None:
    jobs = [await add.aenqueue(n) for n in range(12)]
    assert [await job.aresult(timeout=60) for job in jobs] == [n + 1 for n in range(12)]


def test_the_command_lists_shards_and_names_those_without_a_worker_or_an_answer(
    sharded: Sharded, servers: list[Server]
) -> None:
    jobs = [sharded.task("add").enqueue(n) for n in range(30)]
    counts = Counter(shard_of(job.id) for job in jobs)
    rows = sharded.program("shards", "--json").lines
    assert [(row["shard"], row["ready"], row["workers"]) for row in rows] == [(n, counts[n], 0) for n in range(COUNT)]
    assert "no worker serves shard 0, 1, 2" in sharded.program("shards").err
    servers[2].kill()
    assert "no answer from shard 2; the others" in sharded.program("shards", HEADRACE_TIMEOUT="5").err


def test_a_cluster_goes_on_when_a_slot_moves_and_a_primary_dies(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = new_cluster(3, 1)
    sharded = Sharded(tmp_path, f"{cluster.url}?shards=6")
    add, jobs = sharded.task("add"), list[Any]()
    slots = [key_slot(keys.prefix.encode()) for keys in sharded.app.client.shards]
    assert set(Counter(cluster.serving(slot).port for slot in slots).values()) == {2}
    assert "MIGRATESLOTS" not in sharded.program("shards").err
    assert "uneven-shards" not in findings(sharded, "environment")
    worker = Worker(sharded.program.start("worker", "tasks:app", "--processes", "2"))
    try:
        worker.says("serves default")
        jobs += [add.enqueue(n) for n in range(100)]
        cluster.move(slots[1], cluster.other(cluster.serving(slots[1])))
        jobs += [add.enqueue(n) for n in range(100, 200)]
        cluster.fail_over(cluster.serving(slots[2]))
        jobs += [add.enqueue(n) for n in range(200, 300)]
        assert [job.result(timeout=60) for job in jobs] == [n + 1 for n in range(300)]
        assert worker.stop() == 0
    finally:
        worker.close()
    assert {(record.attempt, record.crashes) for record in (job.refresh() for job in jobs)} == {(1, 0)}
    where = [cluster.serving(slot) for slot in slots]
    rows = sharded.program("shards", "--json").lines
    assert [(row["server"], row["slot"]) for row in rows] == [
        (f"127.0.0.1:{node.port}", slot) for node, slot in zip(where, slots, strict=True)
    ]
    counts = Counter(node.port for node in where)
    (most, _), (least, _) = counts.most_common()[0], counts.most_common()[-1]
    told = sharded.program("shards").err
    assert f"127.0.0.1:{most} has 3 shards and 127.0.0.1:{least} has 1" in told
    assert "CLUSTER MIGRATESLOTS SLOTSRANGE" in told
    assert findings(sharded, "environment")["uneven-shards"] == ["3 shards on one server, 1 on another"]
    assert findings(sharded, "keyspace", code=0) == {}
    lost = next(job for job in jobs if shard_of(job.id) == 1)
    where[1].client().zrem(sharded.app.client.shards[1]("succeeded"), lost.id)
    assert lost.id in str(findings(sharded, "keyspace")["misplaced"])
    sharded.app.close()


def findings(sharded: Sharded, part: str, code: int = 1) -> dict[str, list[str]]:
    rows = sharded.program("doctor", part, "--json", code=code).lines
    return {row["id"]: row["evidence"] for row in rows if row["severity"] != "unknown"}
