"""The test servers themselves: a suite that runs on the wrong server proves nothing."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
import redis

from tests import servers
from tests.servers import Server, connect

NewServer = Callable[..., Server]


@pytest.mark.parametrize("name", servers.NAMES)
def test_each_named_server_starts_or_says_why_not(name: str, new_server: NewServer) -> None:
    server = new_server(name)
    info = server.client().info("server")
    version = info.get("valkey_version", info["redis_version"])
    assert version.startswith(name.partition("-")[2])


def test_data_survives_a_kill_only_with_the_append_only_file(new_server: NewServer) -> None:
    for append_only, expected in ((True, b"v"), (False, None)):
        server = new_server(append_only=append_only)
        server.client().set("k", "v")
        server.restart()
        assert server.client().get("k") == expected


def test_a_port_is_open_only_where_asked(new_server: NewServer) -> None:
    assert new_server().client().config_get("port") == {"port": "0"}
    server = new_server(tcp=True)
    with connect(server.tcp_url) as client:
        assert client.ping()
    with pytest.raises(AssertionError, match="without tcp"):
        _ = new_server().tcp_url


def test_a_password_is_asked_for(new_server: NewServer) -> None:
    server = new_server(password="open-sesame")
    assert server.client().ping()
    with connect(f"unix://{server.socket}") as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()


def test_stop_leaves_neither_process_nor_directory(new_server: NewServer) -> None:
    server = new_server()
    server.stop()
    server.stop()
    assert not server.running
    assert not server.directory.exists()


def test_a_server_that_cannot_start_shows_its_log() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(AssertionError, match="ended while starting"):
            Server(config={"port": str(taken.getsockname()[1])})


def test_the_shared_server_is_empty_and_speaks_bytes(client: redis.Redis) -> None:
    assert client.dbsize() == 0
    client.set("k", "v")
    assert client.get("k") == b"v"
