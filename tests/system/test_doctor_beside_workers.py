"""The doctor beside a producer and workers that use every feature: it finds what was planted, and nothing else."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace.admin.doctor import REPAIRED, SHARE, KeyspaceDoctor
from headrace.model.ids import make_id
from headrace.protocol.keys import Keys
from headrace.protocol.script import load
from headrace.testing import assert_invariants
from tests.deadline import eventually
from tests.program import Program, Worker
from tests.proxy import Proxy
from tests.scripts.stage import KEEP, Stage
from tests.servers import Server
from tests.system import storm_app
from tests.system.fleet import NewFleet, NewServer
from tests.system.ledger import VARIABLE, Ledger
from tests.system.storm import Producer
from tests.system.storm_app import app
from tests.system.test_lost_replication import following
from tests.system.test_soak import SEED, say

pytestmark = pytest.mark.system
FAR = 4_000_000_000_000_000
# A queue that no worker serves yet.
QUIET = "quiet"


class Storm:
    """A producer that uses every feature, and a worker, without a fault.

    Attributes:
        ledger: what jobs did.
        server: where all this is.
    """

    def __init__(self, server: Server, directory: Path) -> None:
        self.server, self.ledger = server, Ledger(directory / "ledger")
        app.override(url=server.url)
        self._program = Program(directory, server.url)
        self._program.environment |= {VARIABLE: str(self.ledger.path), "HR_SLOTS": str(directory)}
        self._workers, self._over = list[Worker](), threading.Event()
        self.worker("default,low")
        self._thread = threading.Thread(target=Producer(SEED).run, args=(self._over,))

    def worker(self, queues: str) -> None:
        words = ("tests.system.storm_app:app", "--queues", queues, "--processes", "1", "--forks", "1")
        self._workers.append(Worker(self._program.start("worker", *words)))
        self._workers[-1].says("serves")

    def __enter__(self) -> Storm:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for worker in self._workers:
            worker.close()
        app.close()

    def look(self, *, repair: bool = False, share: float = 1.0) -> Counter[str]:
        """How many faults of each row a walk finds; what looks wrong is looked at again two seconds later."""
        client = self.server.client()
        found = KeyspaceDoctor(app.client, client, repair=repair, share=share, apart=2.0).run()
        # Beside the storm, new lanes may keep all looks at limits from being of one moment.
        return Counter({one.id: one.count for one in found if one.severity != "unknown"})


class Planted:
    """Faults at random among jobs of a quiet queue, and one of each other kind.

    Attributes:
        rows: what the doctor must find.
        sound: jobs that start once, some of them when they are repaired.
    """

    def __init__(self, client: Any, keys: Keys, dice: random.Random) -> None:
        self._client, self._keys, self._dice = client, keys, dice
        self.rows = Counter[str]()
        drafts = [storm_app.coroutine.options(queue=QUIET).job(1) for _ in range(1300)]
        app.enqueue_many(drafts)
        jobs = [draft.handle for draft in drafts]
        for job in jobs[:150]:
            job.cancel()
        self._ended, ready = [job.id for job in jobs[:150]], [job.id for job in jobs[150:]]
        hurt = set(dice.sample(self._ended[1:] + ready[2:], 1000))
        self._claimed()
        self._singles()
        lost = {id for id in hurt & {*ready} if self._of_ready(id)}
        for id in hurt & {*self._ended}:
            self.rows["misplaced"] += client.zrem(keys(dice.choice(["cancelled", "expires"])), id)
        self.sound = {*ready} - lost - {ready[1]}

    def _of_ready(self, id: str) -> bool:
        """Whether the job is lost, or is left as it is."""
        client, keys = self._client, self._keys
        match self._dice.randrange(4):
            case 0:
                client.delete(keys.job(id))
                self.rows["no-record"] += 1
            case 1:
                client.zadd(keys("failed"), {id: FAR})
                self.rows["twice"] += 1
            case 2:
                client.hset(keys.job(id), "st", "odd")
                self.rows["unreadable"] += 1
            case _:
                client.zrem(keys(f"ready:{QUIET}"), id)
                self.rows["misplaced"] += 1
                return False
        return True

    def _claimed(self) -> None:
        """One claim of a worker without a lease, and one that was told to stop and has no word of it."""
        stage = Stage(self._client, guarded=False)
        stage.now = time.time_ns() // 1000
        for owner in ("gone", "deaf"):
            stage.register(owner, KEEP, QUIET)
            (claim,) = stage.claim(owner, 1, [QUIET]).jobs
        self._client.zrem(self._keys("owners"), "gone")
        self._client.hset(self._keys.job(claim.id), "cancel", 1)
        self.rows += Counter({"claims": 1, "workers": 1, "starts": 1})

    def _singles(self) -> None:
        client, keys, ended = self._client, self._keys, self._ended[0]
        run = storm_app.squares.create(3)
        other = make_id(time.time_ns() // 1_000_000, 7, shard=1)
        client.hset(keys.flow(run.id), "total", 99)
        client.set(keys("novel"), 1)
        client.sadd(keys("parking"), "ghost")
        client.zadd(keys("schedules"), {"ghost": 1})
        client.zadd(keys("waited"), {ended: FAR})
        client.set(keys("turn:ghost"), ended)
        client.set(keys("unique:ghost"), ended)
        client.hset(keys.job(other), mapping={"st": "cancelled", "finished": FAR})
        client.zadd(keys("cancelled"), {other: FAR})
        client.zadd(keys("expires"), {other: FAR})
        rows = ("workflow", "unexplained", "queues", "schedules", "waiters", "order", "held", "other-shard")
        self.rows += Counter(rows)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_thousand_faults_are_found_under_load_and_nothing_else(new_server: NewServer, tmp_path: Path) -> None:
    with Storm(server := new_server(), tmp_path) as storm:
        eventually(lambda: len(storm.ledger.ends()) > 50)
        assert not storm.look()
        planted = Planted(server.client(), app.client.keys, random.Random(SEED))
        assert storm.look() == planted.rows
        left = Counter({row: count for row, count in planted.rows.items() if row not in (*REPAIRED, "workers")})
        assert storm.look(repair=True) == left
        assert storm.look() == left
        storm.worker(QUIET)
        eventually(lambda: planted.sound <= storm.ledger.counts("E").keys(), 120)
        starts = storm.ledger.counts()
        assert {starts[id] for id in planted.sound} == {1}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_failover_in_the_middle_of_a_repair_repairs_nothing_twice(
    new_server: NewServer, new_fleet: NewFleet, tmp_path: Path
) -> None:
    primary = new_server(tcp=True)
    replica, keys, client = following(new_server, primary), Keys(), primary.client()
    with Proxy(primary) as proxy:
        fleet, headrace = new_fleet(proxy.url), Program(tmp_path, proxy.url)
        headrace.environment["HEADRACE_LEASE"] = "3"
        ids = [job.id for job in fleet.enqueue_many("process.add", [(1, 2)] * 4000)]
        client.zrem(keys("ready:default"), *ids)
        client.wait(1, 60_000)
        repair = headrace.start(
            "doctor", "keyspace", "--repair", "--yes", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        eventually(lambda: client.zcard(keys("ready:default")), 60)
        # What is repaired from here on, the failover loses.
        os.kill(replica.pid, signal.SIGSTOP)
        client.client_kill_filter(_type="replica")
        before = client.zcard(keys("ready:default"))
        eventually(lambda: client.zcard(keys("ready:default")) > before)
        primary.kill()
        os.kill(replica.pid, signal.SIGCONT)
        replica.owner.execute_command("REPLICAOF", "NO", "ONE")
        proxy.lead_to(replica.port)
        repair.wait(100)
        assert replica.client().zcard(keys("ready:default"))
        assert "nothing is wrong" in headrace("doctor", "keyspace", "--repair", "--yes").out
        assert replica.client().zcard(keys("ready:default")) == len(ids)
        assert_invariants(replica.client())
        fleet.worker(processes=2)
        fleet.drained()
        assert fleet.ledger.counts() == dict.fromkeys(ids, 1)
        fleet.end()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_walk_over_a_million_jobs_holds_no_worker_up(new_server: NewServer, tmp_path: Path) -> None:
    """HR_DOCTOR_JOBS chooses another size. The server tells how long its scripts took, by its slow log."""
    count, examine = int(os.environ.get("HR_DOCTOR_JOBS", "1000000")), load("examine").sha
    server = new_server(config={"slowlog-log-slower-than": "100", "slowlog-max-len": "100000"})
    with Storm(server, tmp_path) as storm:
        app.enqueue_many(storm_app.coroutine.options(queue=QUIET).job(1) for _ in range(count))
        eventually(storm.ledger.ends, 120)
        began, ended = time.monotonic(), len(storm.ledger.ends())
        server.owner.slowlog_reset()
        assert not storm.look(share=SHARE)
        took, ended = time.monotonic() - began, len(storm.ledger.ends()) - ended
        entries = ((one["duration"], one["command"]) for one in server.owner.slowlog_get(100_000))
        times = sorted(time for time, words in entries if words[:5] == b"EVAL " or examine.encode() in words)
        quarter, half, most = (times[len(times) * percent // 100] for percent in (25, 50, 99))
        say(f"{count} jobs in {took:.0f} s, {ended} others ended; scripts of {quarter}, {half}, at p99 {most} us")
        # Those in which other processes had the server's processor took longer.
        assert quarter < 2000
        assert ended > 0
