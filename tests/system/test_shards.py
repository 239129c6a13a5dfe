"""One queue over several shards, from the producer to the result: on one server, and on one for each shard."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot  # type: ignore[attr-defined]

from headrace import Headrace
from headrace.errors import JobFailed, OptionsError, SchemaMismatch, SettingsError
from headrace.model.ids import shard_of
from headrace.testing import assert_invariants
from tests.clusters import Cluster
from tests.commands import Commands
from tests.deadline import eventually
from tests.program import Worker
from tests.servers import Server

pytestmark = pytest.mark.system

COUNT = 3
ONE_SERVER = pytest.mark.parametrize("sharded", [1], indirect=True)
THREE_SERVERS = pytest.mark.parametrize("sharded", [COUNT], indirect=True)
TASKS = """
import os
from datetime import timedelta
from headrace import Concurrency, Flow, Headrace

app = Headrace(lease=2)

@app.task
def add(x: int, y: int = 1) -> int:
    return x + y

@app.task
def fail() -> None:
    raise ValueError("boom")

@app.task(ordered=True)
def line(path: str, n: int) -> None:
    with open(path, "a") as file:
        file.write(f"{n}\\n")

@app.workflow
def sums(flow: Flow, n: int) -> None:
    flow.run(add, flow.run(add, n), flow.run(add, n))
"""


class Sharded:
    """Programs and a producer of one store."""

    def __init__(self, directory: Path, servers: list[Server], url: str = "") -> None:
        self.servers = servers
        one = f"{servers[0].url}?shards={COUNT}" if servers else url
        self.url = " ".join(server.url for server in servers) if len(servers) > 1 else one
        self.program = Commands(directory, self.url)
        self.program.write("tasks", TASKS)
        self.app = Headrace(self.url, timeout=20)

    def task(self, name: str) -> Any:
        return self.app.by_name(f"tasks.{name}")

    @contextlib.contextmanager
    def worker(self, code: int = 0, options: Sequence[str] = ()) -> Iterator[Worker]:
        worker = Worker(self.program.start("worker", "tasks:app", "--processes", "2", *options))
        try:
            worker.says("serves default")
            yield worker
            assert worker.stop() == code
        finally:
            worker.close()

    def check(self) -> None:
        for server in self.servers:
            assert_invariants(server.client())


@pytest.fixture(params=[1, COUNT], ids=["one server", "three servers"])
def sharded(request: pytest.FixtureRequest, new_server: Callable[..., Server], tmp_path: Path) -> Iterator[Sharded]:
    made = Sharded(tmp_path, [new_server() for _ in range(request.param)])
    yield made
    made.app.close()


def test_jobs_of_all_shards_run_and_tell_their_results(sharded: Sharded) -> None:
    add = sharded.task("add")
    jobs = [add.enqueue(n) for n in range(60)]
    many = sharded.app.enqueue_many(add.job(n, 2) for n in range(3000))
    assert {shard_of(job.id) for job in jobs} == {0, 1, 2}
    assert many == 3000
    with sharded.worker():
        assert [job.result(timeout=60) for job in jobs] == [n + 1 for n in range(60)]
        eventually(lambda: sharded.app.overview().states["succeeded"] == 3060, 60)
        late = [add.enqueue(n) for n in range(30)]
        assert [job.result(timeout=60) for job in late] == [n + 1 for n in range(30)]
        asyncio.run(_wait_on_a_loop(add))
        failed = sharded.task("fail").options(retries=0).enqueue()
        with pytest.raises(JobFailed, match="boom"):
            failed.result(timeout=60)
        (live,) = sharded.app.overview().live
        assert live.queues == ("default",)
    sharded.check()


async def _wait_on_a_loop(add: Any) -> None:
    jobs = [await add.aenqueue(n) for n in range(12)]
    assert [await job.aresult(timeout=60) for job in jobs] == [n + 1 for n in range(12)]


@ONE_SERVER
def test_what_must_be_together_is_on_one_shard(sharded: Sharded, tmp_path: Path) -> None:
    app, add = sharded.app, sharded.task("add")
    assert len({add.options(unique="u").enqueue(1).id for _ in range(9)}) == 1
    assert len({add.options(request_id="r").enqueue(1).id for _ in range(9)}) == 1
    keyed = [add.options(key=f"k{n}").enqueue(1) for n in range(30) for _ in range(2)]
    places = [shard_of(job.id) for job in keyed]
    assert places[::2] == places[1::2]
    assert set(places) == {0, 1, 2}
    with pytest.raises(OptionsError, match="unique and has a key"):
        add.options(key="k", unique="u").enqueue(1)
    ordered = [
        sharded.task("line").options(key=f"k{n % 5}", ordered=True).enqueue(str(tmp_path / f"k{n % 5}"), n)
        for n in range(50)
    ]
    sums = [app.by_name("tasks.add").options().enqueue(n) for n in range(3)]
    sharded.program.burst()
    assert {job.refresh().state for job in (*ordered, *sums)} == {"succeeded"}
    for n in range(5):
        lines = [int(line) for line in (tmp_path / f"k{n}").read_text().split()]
        assert lines == sorted(lines)
        assert len(lines) == 10
    sharded.check()


@THREE_SERVERS
def test_pages_and_verbs_reach_every_shard(sharded: Sharded) -> None:
    app, add = sharded.app, sharded.task("add")
    jobs = [add.options(delay=3600).enqueue(n) for n in range(250)]
    seen = list[str]()
    page = app.jobs.page(state="scheduled", limit=40)
    seen += [job.id for job in page]
    while page.next:
        page = app.jobs.page(state="scheduled", limit=40, after=page.next)
        seen += [job.id for job in page]
    assert Counter(seen) == Counter(job.id for job in jobs)
    first = {shard_of(job.id): job for job in jobs}
    for job in first.values():
        assert job.refresh().state == "scheduled"
        assert app.jobs.why(job.id).code
        assert job.cancel()
        assert job.refresh().state == "cancelled"
    states = app.overview().states
    assert (states["scheduled"], states["cancelled"]) == (250 - COUNT, COUNT)
    assert app.queues["default"].pause()
    assert app.queues["default"].resume()


@ONE_SERVER
def test_a_bulk_operation_is_done_on_all_shards_and_told_as_one(sharded: Sharded) -> None:
    app, jobs = sharded.app, [sharded.task("add").options(delay=3600).enqueue(n) for n in range(60)]
    with sharded.worker():
        sharded.program("jobs", "cancel", "--all", "--state", "scheduled", "--yes", "--detach")
        eventually(lambda: not any(one.running for one in app.bulk.page()), 60)
        (one,) = app.bulk.page()
        assert (one.state, one.progress.done, one.progress.ended) == ("succeeded", 60, 1)
    assert {job.refresh().state for job in jobs} == {"cancelled"}
    sharded.check()


@THREE_SERVERS
def test_workers_of_several_shards_reload_and_stop_while_they_work(sharded: Sharded) -> None:
    app, add = sharded.app, sharded.task("add")
    with sharded.worker(options=["--reload=hup"]) as reloads, sharded.worker() as stops:
        jobs = [add.enqueue(n) for n in range(200)]
        reloads.process.send_signal(signal.SIGHUP)
        eventually(lambda: sum("serves default" in line for line in reloads.lines) == 2 * COUNT, 60)
        jobs += [add.enqueue(n) for n in range(100)]
        place = next(one.place for one in app.overview().live if f":{stops.process.pid}" in one.place)
        sharded.program("workers", "stop", place)
        assert stops.ended() == 0
        jobs += [add.enqueue(n) for n in range(100)]
        assert [job.result(timeout=60) for job in jobs] == [*range(1, 201), *range(1, 101), *range(1, 101)]
    assert {(record.attempt, record.crashes) for record in (job.refresh() for job in jobs)} == {(1, 0)}
    assert not app.overview().live
    sharded.check()


def test_another_number_or_order_of_shards_is_refused(new_server: Callable[..., Server], tmp_path: Path) -> None:
    servers = [new_server() for _ in range(COUNT)]
    urls = [server.url for server in servers]

    def store_one(*given: str, **settings: Any) -> None:
        with Headrace(" ".join(given), timeout=2, **settings) as app:
            app.overview()

    store_one(*urls)
    store_one(*urls)
    with pytest.raises(SchemaMismatch, match="URLs in the order in which the store was made"):
        store_one(*urls[::-1])
    with pytest.raises(SchemaMismatch, match=r"store of 3 shards, .* for one of 1: write \?shards=3"):
        store_one(urls[0])
    single = new_server()
    store_one(single.url)
    with pytest.raises(SchemaMismatch, match=r"store of 1 shards, .* for one of 4: .* \?shards=1\+4 adds four"):
        store_one(single.url, shards=4)
    for given in (f"{single.url}?shards=0", f"{single.url}?shards=x", f"{single.url}?shards=129"):
        with pytest.raises(SettingsError, match="shards must be one number of 1 to 128"):
            store_one(given)
    with pytest.raises(SettingsError, match="not 2 and 3"):
        store_one(*urls, shards=2)
    program = Commands(tmp_path, urls[0])
    assert "this program takes it for one of 1" in program.fresh("worker", "tasks:app", "--burst", code=3).err


@THREE_SERVERS
def test_the_command_lists_shards_and_names_those_without_a_worker_or_an_answer(sharded: Sharded) -> None:
    jobs = [sharded.task("add").enqueue(n) for n in range(30)]
    counts = Counter(shard_of(job.id) for job in jobs)
    rows = sharded.program("shards", "--json").lines
    assert [(row["shard"], row["ready"], row["workers"]) for row in rows] == [(n, counts[n], 0) for n in range(COUNT)]
    assert "no worker serves shard 0, 1, 2" in sharded.program("shards").err
    sharded.servers[2].kill()
    assert "shard 2 does not answer" in sharded.program("shards").err


def test_a_cluster_goes_on_when_a_slot_moves_and_a_primary_dies(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = new_cluster(3, 1)
    sharded = Sharded(tmp_path, [], f"{cluster.url}?shards=6")
    add, jobs = sharded.task("add"), list[Any]()
    slots = [key_slot(keys.prefix.encode()) for keys in sharded.app.client.shards]
    assert set(Counter(cluster.serving(slot).port for slot in slots).values()) == {2}
    assert "MIGRATESLOTS" not in sharded.program("shards").err
    assert "uneven-shards" not in findings(sharded, "environment")
    with sharded.worker():
        jobs += [add.enqueue(n) for n in range(100)]
        cluster.move(slots[1], cluster.other(cluster.serving(slots[1])))
        jobs += [add.enqueue(n) for n in range(100, 200)]
        cluster.fail_over(cluster.serving(slots[2]))
        jobs += [add.enqueue(n) for n in range(200, 300)]
        assert [job.result(timeout=60) for job in jobs] == [n + 1 for n in range(300)]
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
