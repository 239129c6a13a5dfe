"""What a server answers that is short of memory or disk, evicts, loads or is held up: nothing is lost, none is charged."""

from __future__ import annotations

import contextlib
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis

from headrace import Headrace
from headrace.errors import EvictingServer, LaneFull, StoreFull, StoreUnavailable
from headrace.model.ids import shard_of
from headrace.model.job import State
from headrace.tasks.job_handle import Job
from tests.commands import Commands
from tests.deadline import eventually
from tests.program import Program
from tests.program import Worker as WorkerProgram
from tests.servers import Server
from tests.system.fleet import Fleet, Worker
from tests.system.test_soak import say

pytestmark = pytest.mark.system
NewFleet = Callable[..., Fleet]
NewServer = Callable[..., Server]
POLICIES = (
    "allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl",
)  # fmt: skip
TEXT = "x" * 10_000
TENANTS = """
from headrace import Concurrency, Headrace

app = Headrace()
tenants = app.limit("tenants", Concurrency(2), by="tenant", backlog=50)

@app.task(limits=[tenants])
def serve(tenant: str, text: str = "") -> None:
    pass
"""


@contextlib.contextmanager
def load(fleet: Fleet) -> Iterator[list[Job[float]]]:
    """Enqueue one job after the other, beside what the test does; which were acknowledged."""
    made, over = list[Job[float]](), threading.Event()

    def produce() -> None:
        while not over.wait(0.05):
            with contextlib.suppress(StoreFull):
                made.append(fleet.enqueue("process.nap", 0.001))

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield made
    finally:
        over.set()
        thread.join()


def all_succeeded(fleet: Fleet, jobs: list[Job[float]]) -> None:
    fleet.drained()
    records = [job.refresh() for job in jobs]
    assert {record.state for record in records} == {State.SUCCEEDED}
    assert {record.crashes for record in records} == {0}


def ready(worker: Worker, program: Program) -> str:
    return program("health", str(worker.pid), "--ready", code=None).out


def test_each_evicting_policy_under_load_makes_workers_unready(
    new_server: NewServer, new_fleet: NewFleet, tmp_path: Path
) -> None:
    server = new_server()
    fleet, program = new_fleet(server.url), Commands(tmp_path, server.url)
    worker = fleet.worker()
    with load(fleet) as made:
        for policy in POLICIES:
            server.owner.config_set("maxmemory-policy", policy)
            fleet.until(lambda policy=policy: f"maxmemory-policy {policy}" in worker.log())
            fleet.until(lambda: "may drop jobs" in ready(worker, program))
            with Headrace(server.url) as late, pytest.raises(EvictingServer, match=policy):
                late.overview()
        server.owner.config_set("maxmemory-policy", "noeviction")
        fleet.until(lambda: "is ready" in ready(worker, program))
    all_succeeded(fleet, made)
    fleet.end()


def test_keys_that_were_evicted_are_counted_by_worker_and_doctor(
    new_server: NewServer, new_fleet: NewFleet, tmp_path: Path
) -> None:
    server = new_server()
    fleet, program = new_fleet(server.url), Commands(tmp_path, server.url)
    worker = fleet.worker()
    # A worker that claims a job without a record removes it from its queue, and a pause may be evicted, too.
    jobs = fleet.enqueue_many("missing", [("x" * 1000,)] * 500, queue="unserved")
    shards = fleet.app.client.store.shards
    records = [shards[shard_of(job.id)][1].job(job.id) for job in jobs]
    server.owner.config_set("maxmemory-policy", "allkeys-random")
    server.owner.config_set("maxmemory", int(server.owner.info("memory")["used_memory"]) - 200_000)
    eventually(lambda: server.owner.exists(*records) < 490)
    server.owner.config_set("maxmemory", 0)
    server.owner.config_set("maxmemory-policy", "noeviction")
    fleet.until(lambda: "evicted_keys" in worker.log())
    found = {row["id"]: row for row in program("doctor", "--json", code=1).lines}
    assert found["evicted"]["evidence"][0].startswith("evicted_keys ")
    assert found.keys() & {"no-record", "misplaced"}, sorted(found)


def test_one_tenant_that_fills_the_memory_leaves_others_their_backlog(new_server: NewServer, tmp_path: Path) -> None:
    server = new_server()
    program = Commands(tmp_path, server.url)
    program.write("tasks", TENANTS)
    worker, stored = WorkerProgram(program.start("worker", "tasks:app")), list[Job[None]]()
    worker.says("serves default")
    try:
        with Headrace(server.url) as app:
            # So that what waits does not end meanwhile.
            app.queues["default"].pause()
            with pytest.raises(LaneFull):
                while len(stored) < 1000:
                    stored.append(app.by_name("tasks.serve").enqueue("greedy"))
            assert len(stored) == 50
            # What is left of the memory is for the backlog of others.
            server.owner.config_set("maxmemory", int(server.owner.info("memory")["used_memory"]) + 2_000_000)
            for n in range(10):
                stored += [app.by_name("tasks.serve").enqueue(f"t{n}") for _ in range(20)]
            with pytest.raises(LaneFull):
                app.by_name("tasks.serve").enqueue("greedy")
            with pytest.raises(StoreFull):
                while len(stored) < 10_000:
                    stored.append(app.by_name("tasks.serve", queue="rest").enqueue(f"{len(stored)}", TEXT))
            app.queues["default"].resume()
            program("worker", "tasks:app", "--queues", "rest,default", "--burst")
            assert {job.refresh().state for job in stored} == {State.SUCCEEDED}
    finally:
        worker.close()


def test_a_disk_that_was_full_is_written_again_and_nothing_is_lost(new_server: NewServer, new_fleet: NewFleet) -> None:
    server = new_server(append_only=True)
    fleet = new_fleet(server.url, lease=10.0)
    worker = fleet.worker(processes=2)
    process, endless = psutil.Process(server.pid), resource.RLIM_INFINITY
    with load(fleet) as made:
        fleet.until(lambda: len(made) > 20)
        # No file of the server may grow: as a quota that is used up.
        process.rlimit(psutil.RLIMIT_FSIZE, (server.written, endless))
        fleet.until(lambda: server.owner.info("persistence")["aof_last_write_status"] == "err")
        with pytest.raises(StoreFull, match="disk is full"):
            fleet.enqueue("process.nap", 0.001)
        ended = len(fleet.ledger.ends())
        freed = time.monotonic()
        process.rlimit(psutil.RLIMIT_FSIZE, (endless, endless))
        fleet.until(lambda: len(fleet.ledger.ends()) > ended + 1)
        say(f"jobs end again {time.monotonic() - freed:.1f} s after the disk was freed")
        stored = len(made)
        fleet.until(lambda: len(made) > stored + 20)
    all_succeeded(fleet, made)
    assert worker.alive
    server.restart()
    all_succeeded(fleet, made)


def test_a_server_that_loads_for_two_leases_charges_no_job(new_server: NewServer, new_fleet: NewFleet) -> None:
    server = new_server(append_only=True)
    fleet = new_fleet(server.url, lease=3.0, timeout=60.0)
    fleet.worker(processes=2)
    jobs = fleet.enqueue_many("process.nap", [(0.02,)] * 300)
    fleet.until(lambda: len(fleet.ledger.ends()) > 10)
    server.kill()
    server.load_slowly(6_000_000 // 1000)
    all_succeeded(fleet, jobs)


def test_a_server_without_room_for_connections_is_told_as_that(new_server: NewServer) -> None:
    server = new_server(config={"maxclients": "3"})
    others = [server.client(single_connection_client=True) for _ in range(3)]
    assert any(accepted(other) for other in others)
    with Headrace(server.url, timeout=1.0) as app, pytest.raises(StoreUnavailable, match="max number of clients"):
        app.overview()


def accepted(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
