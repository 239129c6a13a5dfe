"""A worker that starts before its server can be used: it waits, and says for what; what its user lacks it says."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

import pytest
import redis

from headrace import Headrace
from headrace.cli.server_check import await_server
from headrace.errors import ServerError
from headrace.model.ids import shard_of
from tests.commands import Commands
from tests.deadline import eventually
from tests.program import Worker
from tests.servers import Server

pytestmark = pytest.mark.system


def test_a_worker_waits_for_a_server_that_is_away_and_then_loads_its_data(
    new_server: Callable[..., Server], headrace: Commands, worker: Callable[..., Worker]
) -> None:
    server = new_server()
    with server.client().pipeline(transaction=False) as pipe:
        for number in range(6000):
            pipe.set(f"other:{number}", 1)
        pipe.save()
        pipe.execute()
    headrace.environment |= {"HEADRACE_URL": server.url, "HEADRACE_TIMEOUT": "0.2"}
    server.kill()
    one = worker()
    one.says("does not answer")
    server.load_slowly(micros=20_000)
    client = server.client()

    def connections() -> int:
        with contextlib.suppress(redis.ConnectionError):
            return int(client.info("stats")["total_connections_received"])
        return 0

    before = eventually(connections, 60)
    eventually(lambda: connections() > before, 60)
    client.config_set("key-load-delay", 0)
    one.says("serves default")
    assert one.stop() == 0


def test_a_worker_serves_the_others_while_a_shard_is_silent(
    new_server: Callable[..., Server], headrace: Commands, worker: Callable[..., Worker]
) -> None:
    """It waited for that one and served none: a deploy in the outage of one shard was an outage of all."""
    servers = [new_server() for _ in range(3)]
    headrace.environment |= {"HEADRACE_URL": " ".join(server.url for server in servers), "HEADRACE_TIMEOUT": "1"}
    id = headrace.enqueue("tasks.add", "1")
    silent = next(n for n in (1, 2) if n != shard_of(id))
    os.kill(servers[silent].pid, signal.SIGSTOP)
    try:
        one = worker()
        one.says("serves default at shard 0 of 3", 20)
        assert headrace("jobs", "result", id, "--timeout", "60s").json == 2
    finally:
        os.kill(servers[silent].pid, signal.SIGCONT)
    one.says(f"serves default at shard {silent} of 3")
    assert one.stop() == 0


@pytest.mark.parametrize(
    ("name", "bad", "good", "said"),
    [("min-replicas-to-write", 1, 0, "too few replicas follow"), ("maxclients", 1, 1000, "raise its maxclients")],
)
def test_a_worker_waits_for_a_server_that_takes_no_work(
    new_server: Callable[..., Server], headrace: Commands, worker: Callable[..., Worker],
    name: str, bad: int, good: int, said: str,
) -> None:  # fmt: skip
    server = new_server()
    client = server.client()
    headrace.environment |= {"HEADRACE_URL": server.url, "HEADRACE_TIMEOUT": "0.2"}
    client.config_set(name, bad)
    one = worker()
    one.says(said)
    client.config_set(name, good)
    one.says("serves default")
    assert sum(said in line for line in one.lines) == 1
    assert one.stop() == 0


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
