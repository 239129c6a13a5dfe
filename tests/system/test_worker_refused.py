"""A server that can be connected to and refuses what is asked: a full disk, a user without permissions."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
import redis

from headrace import Headrace
from headrace.cli.server_check import await_server
from headrace.errors import ServerError
from tests.deadline import eventually
from tests.servers import Server
from tests.system.fleet import Fleet

ATTEMPTS = 8
# What an idle worker asks, each of which is told once.
SCRIPTS = 3


class DiskFull:
    """Snapshots fail, as with a full disk."""

    sign = "MISCONF"

    def __init__(self, server: Server) -> None:
        self.client = server.client()
        self.directory = server.directory / "full"

    def begin(self) -> None:
        self.directory.mkdir()
        self.client.config_set("dir", str(self.directory))
        shutil.rmtree(self.directory)
        self.client.config_set("save", "3600 1")
        self._save("err")

    def end(self) -> None:
        self.directory.mkdir()
        self.client.config_set("dir", str(self.directory))
        self._save("ok")

    def _save(self, word: str) -> None:
        self.client.bgsave()
        eventually(lambda: self.client.info("persistence")["rdb_last_bgsave_status"] == word)


class Forbidden:
    """The worker's user loses its keys."""

    sign = "does not permit"

    def __init__(self, server: Server) -> None:
        self.client = server.client()

    def begin(self) -> None:
        self.client.execute_command("ACL", "SETUSER", "worker", "resetkeys")

    def end(self) -> None:
        self.client.execute_command("ACL", "SETUSER", "worker", "~*")


@pytest.mark.parametrize("kind", [DiskFull, Forbidden])
def test_a_refusing_server_is_asked_on_the_same_connections(
    kind: type[DiskFull] | type[Forbidden], new_server: Callable[..., Server], new_fleet: Callable[..., Fleet]
) -> None:
    """The connections were made anew at each refusal, of whichever script."""
    server = new_server(config={"enable-protected-configs": "yes"})
    client = server.client()
    client.execute_command("ACL", "SETUSER", "worker", "on", "nopass", "allcommands", "allkeys", "allchannels")
    fleet = new_fleet(server.url, lease=10.0)
    worker = fleet.worker(url=server.url_of("worker:any"))
    fault = kind(server)

    def made() -> int:
        return int(client.info("stats")["total_connections_received"])

    def calls() -> int:
        told = client.info("commandstats")["cmdstat_evalsha"]
        return int(told["calls"]) + int(told["rejected_calls"])

    fault.begin()
    fleet.until(lambda: fault.sign in worker.log())
    before, asked = made(), calls()
    fleet.until(lambda: calls() >= asked + ATTEMPTS)
    assert made() == before
    assert worker.log().count(fault.sign) <= SCRIPTS, worker.log()
    fault.end()
    fleet.ended(fleet.enqueue("process.add", 1, 1))
    fleet.until(lambda: "accepts renew again" in worker.log())
    fleet.check()


def test_a_worker_whose_user_may_not_wait_for_jobs_says_so_at_its_start(client: redis.Redis, url: str) -> None:
    client.execute_command("ACL", "SETUSER", "hasty", "on", ">pw", "~*", "&*", "+@all", "-bzpopmin", "-client|id")
    said: list[str] = []
    try:
        with Headrace(url.replace("://", "://hasty:pw@")) as app:
            await_server(app, said.append)
    finally:
        client.execute_command("ACL", "DELUSER", "hasty")
    assert [line.partition("refuses ")[2].partition(" (")[0] for line in said] == ["CLIENT ID", "BZPOPMIN"]


def test_a_worker_whose_user_may_not_listen_is_refused_at_its_start(client: redis.Redis, url: str) -> None:
    client.execute_command("ACL", "SETUSER", "deaf", "on", ">pw", "~*", "resetchannels", "+@all")
    try:
        with (
            Headrace(url.replace("://", "://deaf:pw@")) as app,
            pytest.raises(ServerError, match=r"does not permit INFO or SUBSCRIBE: give its user .*channels"),
        ):
            await_server(app, pytest.fail)
    finally:
        client.execute_command("ACL", "DELUSER", "deaf")
