"""A failover to a replica that had missed the last moments, judged by what clients were told and what jobs did."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import Any

import pytest

from headrace.errors import JobNotFound, NotConfirmed, StoreUnavailable
from tests.deadline import eventually
from tests.proxy import Proxy
from tests.servers import Server
from tests.system.fleet import Fleet, NewFleet, NewServer
from tests.system.history import GONE, History, Wanted, breaches

LEASE = 3.0


def following(new_server: NewServer, primary: Server) -> Server:
    copy = new_server(tcp=True, config={"replicaof": f"127.0.0.1 {primary.port}"})
    eventually(lambda: copy.owner.info("replication")["master_link_status"] == "up", 60, what="the replica's link")
    return copy


class Producer:
    """Asks for jobs, again and again until each is acknowledged; its server may be lost meanwhile."""

    def __init__(self, fleet: Fleet, history: History, durability: Any) -> None:
        self._app, self._history, self._durability = fleet.app, history, durability
        self.jobs: list[Any] = []

    def ask(self, count: int) -> None:
        options: dict[str, Any] = {"durability": self._durability, "max_crashes": 50}
        # With keys, so that they are on all shards.
        drafts = [self._app.by_name("process.fenced", key=str(n), **options).job(0.02) for n in range(count)]
        self.jobs += drafts
        while left := [draft for draft in drafts if not draft.stored]:
            with contextlib.suppress(NotConfirmed, StoreUnavailable):
                with self._history.asking(*(Wanted(draft.id, starts=3) for draft in left)):
                    self._app.enqueue_many(left)
                return

    def read(self) -> None:
        """Read each job at the end."""
        for draft in self.jobs:
            try:
                record = draft.handle.refresh()
                self._history.told(draft.id, record.state, draft.handle.result(timeout=5))
            except JobNotFound:
                self._history.told(draft.id, GONE)


@pytest.mark.slow
@pytest.mark.parametrize(("durability", "shards"), [("memory", 1), ("replicated", 3)])
@pytest.mark.timeout(240)
def test_a_failover_loses_no_job_that_was_confirmed(
    new_server: NewServer,
    new_fleet: NewFleet,
    monkeypatch: pytest.MonkeyPatch,
    durability: str,
    shards: int,
) -> None:
    monkeypatch.delenv("HEADRACE_SHARDS", raising=False)
    primary = new_server(tcp=True)
    replicas = [following(new_server, primary) for _ in range(2)]
    with Proxy(primary) as proxy:
        fleet = new_fleet(f"{proxy.url}?shards={shards}", lease=LEASE, timeout=4.0, result_ttl=3600)
        fleet.worker(processes=2)
        history = History(fleet.directory, fleet.ledger)
        producer, other = Producer(fleet, history, durability), Producer(fleet, history, durability)
        producer.ask(600)
        fleet.until(lambda: len(fleet.ledger.ends()) >= 50)
        for replica in replicas:
            os.kill(replica.pid, signal.SIGSTOP)
        primary.owner.client_kill_filter(_type="replica")
        # From here on claims, ends and new jobs are on the primary alone.
        asking = threading.Thread(target=other.ask, args=[20])
        asking.start()
        before = len(fleet.ledger.ends())
        fleet.until(lambda: len(fleet.ledger.ends()) >= before + 50)
        if durability == "memory":
            asking.join(60)
        # Replicated, they are not acknowledged before the other server has them.
        assert asking.is_alive() == (durability == "replicated")
        primary.kill()
        new, follower = replicas
        for replica in replicas:
            os.kill(replica.pid, signal.SIGCONT)
        new.owner.execute_command("REPLICAOF", "NO", "ONE")
        follower.owner.execute_command("REPLICAOF", "127.0.0.1", new.port)
        proxy.lead_to(new.port)
        asking.join(100)
        assert not asking.is_alive()
        fleet.drained(100)
        producer.read()
        other.read()
        found = breaches(history.events(), overlap=LEASE)
        if durability == "replicated":
            assert found == []
        else:
            # The twenty were acknowledged, and the failover lost them: the judge finds it.
            assert {breach.rule for breach in found} == {"lost"}
            assert {breach.id for breach in found} == {draft.id for draft in other.jobs}
