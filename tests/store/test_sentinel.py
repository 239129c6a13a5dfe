"""A fleet behind Sentinels: the master is asked for, and asked for again when it has changed. One real failover."""

from __future__ import annotations

import asyncio
import contextlib
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace import Headrace, Settings
from headrace.errors import HeadraceError, StoreUnavailable, UrlError
from headrace.protocol import overviews
from headrace.store.connection import aconnect, connect, sentinels
from headrace.store.store import AsyncStore, Store
from headrace.store.url import Target, parse
from tests.deadline import eventually
from tests.servers import Server, find, free_port
from tests.store.twin import stub
from tests.tls import AUTHORITY, terminator

CONFIG = """
port {port}
bind 127.0.0.1
dir {directory}
sentinel monitor jobs 127.0.0.1 {master} 1
sentinel down-after-milliseconds jobs 3000
sentinel failover-timeout jobs 2000
"""

Make = Callable[..., Server]


@pytest.fixture
def master(new_server: Make) -> Server:
    return new_server(tcp=True)


@pytest.fixture
def replica(new_server: Make, master: Server) -> Server:
    copy = new_server(tcp=True, config={"replicaof": f"127.0.0.1 {master.port}"})
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


def test_a_master_that_is_away_is_named_as_people_write_it(master: Server, replica: Server, sentinel: int) -> None:
    for server in (replica, master):
        server.kill()
    with Headrace(f"sentinel://127.0.0.1:{sentinel}/jobs/0", timeout=3) as app:
        with pytest.raises(StoreUnavailable, match=f"connecting to 127.0.0.1:{master.port}"):
            app.overview()
        with pytest.raises(StoreUnavailable, match=f"connecting to 127.0.0.1:{master.port}"):
            asyncio.run(app.aoverview())


def test_asynchronous_callers_find_the_master_too(master: Server, replica: Server, sentinel: int) -> None:
    async def story() -> None:
        store = AsyncStore(f"sentinel://127.0.0.1:{sentinel}/jobs/0", Settings())
        assert (await store.run(overviews.overview(store.keys))).states["ready"] == 0
        await store.close()

    asyncio.run(story())


def test_an_unknown_service_and_a_silent_sentinel_are_told_apart(
    master: Server, replica: Server, sentinel: int
) -> None:
    known, silent = f"127.0.0.1:{sentinel}", f"127.0.0.1:{free_port()}"
    for url, reason in (
        (f"sentinel://{silent},{known}/other/0", f"the Sentinel at {known} knows no master 'other'"),
        (f"sentinel://{silent}/jobs/0", "refused"),
    ):
        store = Store(url, Settings(timeout=3.0))
        with pytest.raises(StoreUnavailable, match=f"did not answer.*{reason}"):
            store.run(overviews.overview(store.keys))
        store.close()
    with Headrace(f"sentinel://{silent},{known}/jobs/0") as app:
        assert app.by_name("tasks.one").enqueue(1).state == "ready"


@pytest.mark.parametrize("way", [connect, lambda *call: asyncio.run(aconnect(*call))])
def test_a_sentinel_that_fails_is_asked_once_before_the_next(way: Callable[[Target, float], Any]) -> None:
    asked = list[int]()

    class Leaves(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            asked.append(self.server.server_address[1])

    with ExitStack() as stack:
        ports = list[int]()
        for _ in range(2):
            server = stack.enter_context(socketserver.TCPServer(("127.0.0.1", 0), Leaves))
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            stack.callback(server.shutdown)
            ports.append(server.server_address[1])
        with pytest.raises(redis.RedisError):
            way(parse(f"sentinel://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/jobs/0"), 5.0)
    assert asked == ports


def names(port: int) -> contextlib.AbstractContextManager[str]:
    """A Sentinel that says that the master is at this port."""
    there = f"*2\r\n$9\r\n127.0.0.1\r\n${len(str(port))}\r\n{port}\r\n".encode()
    return stub(lambda words: there if words[0] == b"SENTINEL" else b"+OK\r\n")


def led(way: Callable[[Target, float], Any], *sentinels: str) -> int:
    """The port that these lead to."""
    places = ",".join(url.removeprefix("redis://") for url in sentinels)
    port: int = way(parse(f"sentinel://:secret@{places}/jobs/0"), 5.0)
    return port


def by_a_thread(target: Target, timeout: float) -> int:
    connection = connect(target, timeout)
    connection.disconnect()
    return int(connection.port)


def by_a_loop(target: Target, timeout: float) -> int:
    async def story() -> int:
        connection = await aconnect(target, timeout)
        await connection.disconnect()
        return int(connection.port)

    return asyncio.run(story())


@pytest.mark.parametrize("way", [by_a_thread, by_a_loop])
def test_a_sentinel_that_has_missed_a_failover_is_not_believed(way: Callable[[Target, float], Any]) -> None:
    """As one that was started again without its file, at another address: the others do not find it."""
    with stub(lambda _: b"+OK\r\n") as master:
        port = int(master.rpartition(":")[2])
        with names(free_port()) as late, names(port) as right:
            assert led(way, late, right) == port


@pytest.mark.parametrize("way", [by_a_thread, by_a_loop])
def test_what_a_master_refuses_is_told_though_the_next_sentinel_is_away(way: Callable[[Target, float], Any]) -> None:
    def answer(words: list[bytes]) -> bytes:
        return b"-WRONGPASS no\r\n" if words[0] == b"AUTH" else b"+OK\r\n"

    with (
        stub(answer) as master,
        names(int(master.rpartition(":")[2])) as first,
        pytest.raises(redis.AuthenticationError),
    ):
        led(way, first, f"redis://127.0.0.1:{free_port()}")


@pytest.mark.parametrize(("timeout", "each"), [(6.0, 2.0), (60.0, 5.0)])
def test_sentinels_that_are_all_silent_take_no_longer_than_the_call_may(timeout: float, each: float) -> None:
    found = sentinels(parse("sentinel://one,two,three/jobs/0"), timeout)
    assert [(it["socket_timeout"], it["socket_connect_timeout"]) for _, it in found] == [(each, each)] * 3


@pytest.fixture
def behind_tls(tmp_path: Path, new_server: Make) -> Iterator[tuple[Server, int]]:
    """A server and its Sentinel that answer over TLS; where the Sentinel is."""
    server = new_server(tcp=True)
    with terminator(server, plain=True) as master, ExitStack() as stack:
        port = free_port()
        path = tmp_path / "sentinel.conf"
        path.write_text(CONFIG.format(port=port, directory=tmp_path, master=master))
        process = subprocess.Popen(
            ["redis-sentinel", str(path), "--sentinel"],
            executable=find("valkey-9").path, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        stack.callback(process.wait)
        stack.callback(process.terminate)
        with redis.Redis(port=port, protocol=2) as client:
            eventually(lambda: _answers(client), 60, what="a Sentinel")
        yield server, stack.enter_context(terminator(port))


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def test_a_sentinel_and_its_master_are_reached_over_tls(behind_tls: tuple[Server, int]) -> None:
    server, port = behind_tls
    url = f"sentinels://127.0.0.1:{port}/jobs/0?ssl_ca_certs={AUTHORITY}"
    with Headrace(url, timeout=20) as app:
        job = app.by_name("tasks.one").enqueue(1)
        assert server.client().exists(app.client.keys.job(job.id))
        app.cache.set("name", 1)
        assert app.cache.get("name") == 1

    async def story() -> None:
        store = AsyncStore(url, Settings())
        assert (await store.run(overviews.overview(store.keys))).states["ready"] == 1
        await store.close()

    asyncio.run(story())


def test_a_sentinel_whose_certificate_nobody_signed_is_not_believed(behind_tls: tuple[Server, int]) -> None:
    _, port = behind_tls
    app = Headrace(f"sentinels://127.0.0.1:{port}/jobs/0", timeout=20)
    with app, pytest.raises(HeadraceError, match="shows a certificate that is not accepted"):
        app.by_name("tasks.one").enqueue(1)


def test_a_url_without_tls_does_not_reach_a_sentinel_with_it(behind_tls: tuple[Server, int]) -> None:
    _, port = behind_tls
    app = Headrace(f"sentinel://127.0.0.1:{port}/jobs/0", timeout=4)
    with app, pytest.raises(HeadraceError, match="If it does, write sentinels://"):
        app.by_name("tasks.one").enqueue(1)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("ssl_ca_certs=/absent", "which is for TLS: write sentinels://"),
        ("db=3", "has the option 'db', which is unknown: sentinel:// has none"),
    ],
)
def test_options_that_mean_nothing_to_a_sentinel(query: str, said: str) -> None:
    with pytest.raises(UrlError, match=said):
        Store(f"sentinel://host/jobs?{query}", Settings())


@pytest.mark.parametrize(
    "url",
    [
        "sentinel://", "sentinel://host", "sentinel://host:x/jobs", "sentinel://host/jobs/x",
        "sentinel://host/jobs/\N{SUPERSCRIPT TWO}",
    ],
)  # fmt: skip
def test_urls_that_cannot_name_a_master(url: str) -> None:
    with pytest.raises(UrlError, match="sentinel://host:26379"):
        Store(url, Settings())
