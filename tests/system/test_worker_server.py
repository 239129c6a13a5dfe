"""What the server may do to a worker: die, forget its scripts, drop connections, stall, refuse."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.model.job import State
from headrace.tasks.job_handle import Job
from tests.servers import NAMES, Server
from tests.system.fleet import Fleet, NewFleet, NewServer
from tests.system.test_soak import say


@pytest.fixture
def own(new_server: NewServer) -> Server:
    """A server to mistreat, whose every write is on disk before it is acknowledged."""
    return new_server(append_only=True)


@pytest.fixture
def served(own: Server, new_fleet: NewFleet) -> Iterator[Fleet]:
    fleet = new_fleet(own.url, lease=10.0)
    yield fleet
    if own.running:
        fleet.end()
        fleet.check()


def _all_ran_once(fleet: Fleet, jobs: list[Job[float]]) -> None:
    fleet.drained(60)
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert fleet.ledger.counts("S") == fleet.ledger.counts("E") == {job.id: 1 for job in jobs}


def test_jobs_survive_kills_of_the_server_and_those_that_come_meanwhile_are_stored_once(
    own: Server, served: Fleet
) -> None:
    """A restart shorter than the lease costs nothing: outcomes are sent again until they are answered."""
    for n in range(2):
        served.worker(processes=2, queues=f"default,q{n}")
    jobs = served.enqueue_many("process.nap", [(0.02,)] * 150)
    stop, made = threading.Event(), list[Job[float]]()

    def produce() -> None:
        while not stop.is_set():
            made.append(served.enqueue("process.nap", 0.0))

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        for share in (20, 60, 100):
            served.until(lambda share=share: len(served.ledger.ends()) >= share and len(made) >= share)
            own.restart()
    finally:
        stop.set()
        producer.join(20)
    _all_ran_once(served, jobs + made)


def test_a_server_that_forgets_its_scripts_and_closes_connections_gets_them_again(
    own: Server, served: Fleet, tmp_path: Path
) -> None:
    served.worker(processes=2)
    jobs = served.enqueue_many("process.nap", [(0.005,)] * 120)
    client = own.client()
    for share in range(20, 120, 20):
        served.until(lambda share=share: len(served.ledger.ends()) >= share)
        client.script_flush()
        for kind in ("normal", "pubsub") if share % 40 == 20 else ():
            client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    _all_ran_once(served, jobs)
    # All of them: wake-ups and cancellations are heard again too.
    job = served.enqueue("process.gate", str(tmp_path / "never"))
    served.started(job)
    job.cancel()
    assert served.ended(job).state is State.CANCELLED


def test_a_server_that_refuses_all_for_a_while_is_waited_for(own: Server, served: Fleet) -> None:
    served.worker(processes=2)
    client, jobs = own.client(), list[Job[float]]()
    for answer in ("READONLY", "MASTERDOWN", "NOREPLICAS"):
        jobs += served.enqueue_many("process.nap", [(0.01,)] * 100)
        begun = len(served.ledger.ends()) + 20
        served.until(lambda begun=begun: len(served.ledger.ends()) >= begun)
        if answer == "NOREPLICAS":
            client.config_set("min-replicas-to-write", 1)
        else:
            # Of a master that does not exist: it keeps its data, and refuses every write, or every read, too.
            client.config_set("replica-serve-stale-data", "no" if answer == "MASTERDOWN" else "yes")
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
        before = len(served.ledger.ends())
        served.until(lambda before=before: _waits(served) or len(served.ledger.ends()) > before + 1)
        client.config_set("min-replicas-to-write", 0)
        client.execute_command("REPLICAOF", "NO", "ONE")
        before, back = len(served.ledger.ends()), time.monotonic()
        served.until(lambda before=before: len(served.ledger.ends()) > before + 1)
        say(f"jobs end again {time.monotonic() - back:.1f} s after {answer}")
    _all_ran_once(served, jobs)


def _waits(fleet: Fleet) -> bool:
    log = fleet.workers[0].log()
    return log.rfind("does not answer") > log.rfind("answers again")


@pytest.mark.parametrize("name", NAMES)
def test_the_documented_rights_are_enough_for_workers_and_programs(
    name: str, new_server: NewServer, new_fleet: NewFleet
) -> None:
    server = new_server(name)
    rights = ["+@all", "-@dangerous", "+info", "+client|unblock"]
    # All of CLIENT is dangerous there.
    rights += ["+client|id", "+client|tracking"] if name == "redis-6.2" else []
    docs = Path(__file__).parents[2] / "docs"
    page = docs / "server.md"
    assert " ".join(rights[4:]) in page.read_text()
    assert " ".join(rights[:4]) in page.read_text()
    if server.clustered:
        rights += ["+cluster|slots", "+cluster|myid"]
        assert " ".join(rights[-2:]) in (docs / "cluster.md").read_text()
    scope = ("~{hr:*", "resetchannels", "&{hr:*")
    server.client().execute_command("ACL", "SETUSER", "app", "on", ">secret", *rights, *scope)
    fleet = new_fleet(server.url_of("app:secret"))
    fleet.worker(processes=1)
    assert fleet.app.by_name("process.add").enqueue(1, 2).result(timeout=10) == 3
    fleet.app.cache.set("a", 1)
    assert fleet.app.cache.get("a") == 1
    seen = fleet.app.cache.statistics()
    assert (seen.healthy, seen.fault) == (True, "")
    fleet.app.stats.add("a", {"count": 1})
    fleet.app.stats.flush()
    assert "does not permit" not in fleet.workers[0].log()
