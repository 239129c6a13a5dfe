"""A TCP proxy that breaks on command: between a store and its server, all in this process.

Owns: forwarding bytes over loopback, and the faults of a network: refuse, reset, swallow, delay, cut before a reply.
Must not: understand more of the protocol than where one reply ends.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Self

import pytest

from tests.servers import Server

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER so that closing sends a reset: the peer sees an error, not an end."""


class Proxy:
    """Forwards connections to a server's loopback port until it is told to misbehave.

    Attributes:
        mode: what happens to bytes from now on: ``pass``; ``swallow`` (half-open: taken from both sides and dropped);
            ``refuse`` (new connections are reset at once).
        delay: seconds that each piece from the server is held back.
        cut: called with each piece from the server; True drops it and resets the connection: the command was
            executed, its reply is lost.
        lost_request: called with each piece from a client; True drops it, and the connection stays open.
        accepted: connections so far.
        lost: replies that ``cut`` dropped.
        trips: requests that followed an answer, or opened a connection: a pipeline is one.
        barred: addresses from which no connection is taken.

    Args:
        server: or its loopback port, where the proxy's URL is not needed.
    """

    def __init__(self, server: Server | int) -> None:
        self.mode = "pass"
        self.delay = 0.0
        self.cut: Callable[[bytes], bool] = lambda _: False
        self.lost_request: Callable[[bytes], bool] = lambda _: False
        self.accepted = 0
        self.lost = 0
        self.trips = 0
        self.barred: set[str] = set()
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        if isinstance(server, Server) and server.clustered:
            if server.binary.name == "redis-6.2":
                self._listener.close()
                pytest.skip("a node of Redis 6.2 announces the proxy's port from its next start on only")
            # Otherwise the map of the cluster leads past the proxy.
            server.owner.config_set("cluster-announce-port", self.port)
        self._peers: dict[socket.socket, socket.socket] = {}
        # From which address each client came.
        self._sources: dict[socket.socket, str] = {}
        self._upstream: set[socket.socket] = set()
        # Clients that have asked and were not answered yet.
        self._waiting: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._stopping = threading.Event()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._forward, name="proxy", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        assert isinstance(self._server, Server)
        password = f":{self._server.password}@" if self._server.password else ""
        scheme = "cluster" if self._server.clustered else "redis"
        return f"{scheme}://{password}127.0.0.1:{self.port}"

    def lead_to(self, port: int) -> None:
        """Connect to another loopback port from now on."""
        self._server = port

    def drop(self, addresses: Collection[str] | None = None) -> None:
        """Reset every connection that is open now, or those from some addresses."""
        with self._lock:
            for one in list(self._peers):
                if addresses is None or self._sources.get(one) in addresses:
                    self._reset(one)

    def lose_replies(self, count: int = 1, when: Callable[[bytes], bool] = lambda _: True) -> None:
        """Drop the next ``count`` pieces from the server that ``when`` picks, and their connections with them."""
        left = [count]

        def cut(data: bytes) -> bool:
            if left[0] and when(data):
                left[0] -= 1
                return True
            return False

        self.cut = cut

    def close(self) -> None:
        if isinstance(self._server, Server) and self._server.clustered and self._server.running:
            self._server.owner.config_set("cluster-announce-port", 0)
        self._stopping.set()
        self._wake.send(b"x")
        self._thread.join(10)
        self.drop()
        for one in (self._listener, self._wake, self._woken):
            one.close()
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _forward(self) -> None:
        while not self._stopping.is_set():
            for key, _ in self._selector.select():
                one = key.fileobj
                if one is self._listener:
                    self._accept()
                elif isinstance(one, socket.socket) and one is not self._woken:
                    self._pump(one)

    def _accept(self) -> None:
        with self._lock:
            near, (address, _) = self._listener.accept()
            self.accepted += 1
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                if self.mode == "refuse" or address in self.barred:
                    raise ConnectionRefusedError
                port = self._server if isinstance(self._server, int) else self._server.port
                far = socket.create_connection(("127.0.0.1", port), timeout=5)
            except OSError:
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                near.close()
                return
            far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers |= {near: far, far: near}
            self._upstream.add(far)
            self._sources[near] = address
            for one in (near, far):
                self._selector.register(one, selectors.EVENT_READ)

    def _pump(self, one: socket.socket) -> None:
        with self._lock:
            if one not in self._peers:
                return
            try:
                data = one.recv(1 << 20)
            except OSError:
                data = b""
            if not data:
                self._reset(one)
                return
            if self.mode == "swallow":
                return
            from_server = one in self._upstream
            if from_server and self.cut(data):
                self.lost += 1
                self._reset(one)
                return
            if not from_server and self.lost_request(data):
                return
            peer = self._peers[one]
            if from_server:
                self._waiting.discard(peer)
            elif one not in self._waiting:
                self._waiting.add(one)
                self.trips += 1
        if from_server and self.delay:
            self._stopping.wait(self.delay)
        with contextlib.suppress(OSError):
            peer.sendall(data)

    def _reset(self, one: socket.socket) -> None:
        other = self._peers.pop(one, None)
        if other is None:
            return
        self._peers.pop(other, None)
        for each in (one, other):
            self._upstream.discard(each)
            self._sources.pop(each, None)
            self._waiting.discard(each)
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(each)
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            each.close()
