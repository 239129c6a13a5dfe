"""A replica that was behind is promoted: what its primary had not sent to it is forgotten."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deadline import eventually
from tests.servers import Server
from tests.system.fleet import LONG_LEASE, Fleet
from tests.system.test_rollback import SEED, all_succeed, work

NewFleet = Callable[..., Fleet]
NewServer = Callable[..., Server]


class Pair:
    """A primary and its replica behind one address, as a service or a proxy gives it."""

    def __init__(self, new_server: NewServer, address: Path) -> None:
        self._new_server = new_server
        self._address = address
        self.primary = new_server(tcp=True)
        self._lead_to(self.primary)
        self.replica = self._follow()

    def _follow(self) -> Server:
        replica = self._new_server(tcp=True, config={"replicaof": f"127.0.0.1 {self.primary.port}"})
        eventually(lambda: replica.client().info("replication")["master_link_status"] == "up", what="it follows")
        return replica

    def _lead_to(self, server: Server) -> None:
        new = self._address.with_suffix(".new")
        new.symlink_to(server.socket)
        new.replace(self._address)

    def part(self) -> None:
        """From here on the replica hears nothing more of its primary."""
        self.replica.client().replicaof("127.0.0.1", "1")

    def fail_over(self) -> None:
        """The primary dies, the replica takes its place with what it knows, and gets a replica of its own."""
        self.primary.kill()
        self.replica.client().replicaof("NO", "ONE")
        self._lead_to(self.replica)
        self.primary = self.replica
        self.replica = self._follow()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(SEED, SEED + int(os.environ.get("HR_ROUNDS", "1"))))
def test_what_a_replica_did_not_hear_of_ends_all_the_same(
    new_server: NewServer, new_fleet: NewFleet, tmp_path: Path, seed: int
) -> None:
    """Plain jobs, retries, ordered jobs and workflows; the lease is so long that it helps nobody."""
    dice = random.Random(seed)
    sys.stdout.write(f"seed {seed} (HR_SEED chooses another)\n")
    pair = Pair(new_server, tmp_path / "s")
    fleet = new_fleet(
        f"unix://{tmp_path}/s", lease=LONG_LEASE, shutdown_timeout=5.0, result_ttl=3600, max_finished=10_000
    )
    jobs, runs, left = work(fleet, dice)
    fleet.forgetful = True
    for _ in range(2):
        fleet.worker(kinds="process,thread,async", processes=2)
    lost = 0
    for _ in range(3):
        some = len(fleet.ledger.ends()) + dice.randint(5, 30)
        fleet.until(lambda some=some: len(fleet.ledger.ends()) >= some or not left())
        pair.part()
        before = len(fleet.ledger.ends())
        more = before + dice.randint(5, 40)
        fleet.until(lambda more=more: len(fleet.ledger.ends()) >= more or not left())
        lost += len(fleet.ledger.ends()) - before
        pair.fail_over()
    assert lost, "something was forgotten"
    all_succeed(fleet, jobs, runs)
