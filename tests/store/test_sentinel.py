"""A fleet behind Sentinels: the master is asked for, and asked for again when it has changed. One real failover."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace import Headrace, Settings
from headrace.errors import StoreUnavailable, UrlError
from headrace.protocol import admin
from headrace.store import AsyncStore, Store
from tests.deadline import eventually
from tests.servers import Server, find, free_port

CONFIG = """
port {port}
bind 127.0.0.1
dir {directory}
sentinel monitor jobs 127.0.0.1 {master} 1
sentinel down-after-milliseconds jobs 1500
sentinel failover-timeout jobs 2000
"""

Make = Callable[..., Server]


@pytest.fixture
def master(new_server: Make) -> Server:
    return new_server(tcp=True)


@pytest.fixture
def replica(new_server: Make, master: Server) -> Server:
    copy = new_server(tcp=True, config={"replicaof": f"127.0.0.1 {master.port}", "repl-diskless-sync-delay": "0"})
    eventually(lambda: copy.client().info("replication")["master_link_status"] == "up", 60, what="the replica's link")
    return copy


@pytest.fixture
def sentinel(tmp_path: Path, master: Server, replica: Server) -> Iterator[int]:
    port = free_port()
    path = tmp_path / "sentinel.conf"
    path.write_text(CONFIG.format(port=port, directory=tmp_path, master=master.port))
    with subprocess.Popen(
        ["redis-sentinel", str(path), "--sentinel"],
        executable=find("valkey-9").path, stdout=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            with redis.Redis(port=port, protocol=2, decode_responses=True) as client:
                eventually(lambda: _replicas(client) == 1, 60, what="a Sentinel that knows the replica")
            yield port
        finally:
            # The block's end waits for it, and so for ever if the replica was not found.
            process.terminate()


def _replicas(client: redis.Redis) -> int:
    try:
        state: Any = client.execute_command("SENTINEL", "MASTER", "jobs")
    except redis.ConnectionError:
        return 0
    facts = state if isinstance(state, dict) else dict(zip(state[::2], state[1::2], strict=True))
    return int(facts["num-slaves"])


def test_work_goes_on_with_the_promoted_replica(master: Server, replica: Server, sentinel: int) -> None:
    url = f"sentinel://127.0.0.1:{sentinel}/jobs/0"
    with Headrace(url, timeout=60) as app:
        before = app.by_name("tasks.one").enqueue(1)
        eventually(lambda: replica.client().dbsize() == master.client().dbsize(), what="replication")
        master.kill()
        after = app.by_name("tasks.two").enqueue(2)
        assert {before.state, after.state} == {"ready"}
        assert replica.client().info("replication")["role"] == "master"


def test_asynchronous_callers_find_the_master_too(master: Server, replica: Server, sentinel: int) -> None:
    async def story() -> None:
        store = AsyncStore(f"sentinel://127.0.0.1:{sentinel}/jobs/0", Settings())
        assert (await store.run(admin.overview(store.keys))).states["ready"] == 0
        await store.close()

    asyncio.run(story())


def test_an_unknown_service_and_a_silent_sentinel_are_told_apart(
    master: Server, replica: Server, sentinel: int
) -> None:
    for url in (f"sentinel://127.0.0.1:{sentinel}/other/0", f"sentinel://127.0.0.1:{free_port()}/jobs/0"):
        store = Store(url, Settings(timeout=0.5))
        with pytest.raises(StoreUnavailable, match="did not answer"):
            store.run(admin.overview(store.keys))
        store.close()


@pytest.mark.parametrize("url", ["sentinel://", "sentinel://host", "sentinel://host:x/jobs", "sentinel://host/jobs/x"])
def test_urls_that_cannot_name_a_master(url: str) -> None:
    with pytest.raises(UrlError, match="sentinel://host:26379"):
        Store(url, Settings())
