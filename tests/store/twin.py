"""Both stores behind one synchronous face, so that one suite runs over both; and a server that says what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from headrace.protocol.keys import SCHEMA
from headrace.protocol.produce import Watched
from headrace.protocol.script import Call
from headrace.settings import Settings
from headrace.store.client import Client
from headrace.store.store import AsyncStore, Store
from headrace.store.waiting import await_job, wait_job

T = TypeVar("T")
KINDS = ("Store", "AsyncStore")


class Twin:
    """A Store, or an AsyncStore on an event loop of its own."""

    def __init__(self, kind: str, url: str, **settings: Any) -> None:
        self.client = Client(Settings(**{"url": url, "timeout": 30.0} | settings))
        self.store: Store | AsyncStore = self.client.store if kind == "Store" else self.client.astore
        self._runner = asyncio.Runner() if isinstance(self.store, AsyncStore) else None

    def _do(self, made: Any) -> Any:
        return self._runner.run(made) if self._runner else made

    def run(self, call: Call[T]) -> T:
        return self._do(self.store.run(call))

    def run_all(self, calls: Sequence[Call[Any]]) -> list[Any]:
        return self._do(self.store.run_all(calls))

    def at_once(self, calls: Sequence[Call[Any]]) -> None:
        """Send each over a connection of its own."""
        if isinstance(self.store, AsyncStore):
            store = self.store

            async def all_of_them() -> None:
                await asyncio.gather(*map(store.run, calls))

            self._do(all_of_them())
            return
        for thread in [started(partial(self.run, call)) for call in calls]:
            thread.join(20)

    def wait_final(self, id: str, timeout: float | None) -> Watched:
        return self._do((await_job if self._runner else wait_job)(self.client, id, timeout))

    def close(self) -> None:
        self._do(self.client.aclose() if self._runner else self.client.close())
        if self._runner:
            self._runner.close()


def started(function: Callable[[], object]) -> threading.Thread:
    """A thread that runs ``function``; join it."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


Answer = Callable[[list[bytes]], bytes]


@contextlib.contextmanager
def stub(answer: Answer) -> Iterator[str]:
    """The URL of a server that answers each command as ``answer`` says; for servers that cannot be had."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []
    open_now: list[socket.socket] = []

    def serve(peer: socket.socket) -> None:
        with peer, peer.makefile("rb") as lines, contextlib.suppress(OSError, ValueError):
            while head := lines.readline():
                command = []
                for _ in range(int(head[1:])):
                    size = int(lines.readline()[1:])
                    command.append(lines.read(size + 2)[:-2])
                peer.sendall(answer(command))

    def accept() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            open_now.append(peer)
            threads.append(started(partial(serve, peer)))

    accepting = started(accept)
    try:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join(20)
        for peer in open_now:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(20)


GREETING = b"*6\r\n:%d\r\n:0\r\n$0\r\n\r\n$0\r\n\r\n:0\r\n$6\r\n0 of 1\r\n" % SCHEMA
"""What a store of our own layout answers to the greeting."""


def bulk(text: str) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text), text.encode())


def says(version: str, *, policy: str = "noeviction", valkey: str = "", then: Answer | None = None) -> Answer:
    """Answers of a server of this version; ``then`` answers what is not part of the greeting."""
    facts = f"redis_version:{version}\r\n" + (f"valkey_version:{valkey}\r\n" if valkey else "")

    def answer(command: list[bytes]) -> bytes:
        name = command[0].upper()
        if name == b"INFO":
            return bulk(facts if command[1] == b"server" else f"maxmemory_policy:{policy}\r\n")
        if name.startswith(b"EVALSHA"):
            return then(command) if then else GREETING
        return b"+OK\r\n"

    return answer
