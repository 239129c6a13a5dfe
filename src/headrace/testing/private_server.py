"""Servers for tests.

1. :class:`PrivateServer`: the private server of a test run: one for this process, in a directory of its own, without an
   append-only file. Owns the server's beginning and end. It is never the server of other programs of this machine.
2. :class:`Takeover`: an application on another server for the length of a test, in a namespace of its own there. Owns
   the keys of that namespace: it reports the keys that are left, then removes them.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import redis

from headrace.admin.keyspace import read
from headrace.admin.keyspace_rules import breaches
from headrace.app import Headrace
from headrace.embedded import Embedded, attach
from headrace.protocol.keys import keys_of
from headrace.settings import Settings
from headrace.store.connection import connection_class, node_of
from headrace.store.url import parse
from headrace.testing.kit_store import AsyncKitStore, KitListener, KitStore, Wire

_lock = threading.Lock()
_made: dict[int, PrivateServer] = {}


class PrivateServer(msgspec.Struct, frozen=True):
    """One server that tests of this process share.

    Attributes:
        url: holds its password.
    """

    url: str
    _held: Embedded
    _directory: Path

    def close(self) -> None:
        """Let it end, and remove its directory. Closing twice is fine."""
        _made.pop(os.getpid(), None)
        self._held.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def private_server() -> PrivateServer:
    """The server of this process, started at first use; it ends with the process, or when it is closed. Raises
    ServerError: no server program is installed, or it cannot be started. Cost: some tenths of a second the first time.
    """
    with _lock:
        found = _made.get(os.getpid())
        if found is None:
            # Not pytest's own directory, whose path is too long for a socket.
            directory = Path(tempfile.mkdtemp(prefix="headrace-test-"))
            held = attach(directory / "server", idle_timeout=0)
            found = _made[os.getpid()] = PrivateServer(held.url, held, directory)
            with connection(found.url) as client:
                client.config_set("appendonly", "no")
            atexit.register(found.close)
        return found


def connection(url: str, namespace: str = "hr") -> Any:
    """A plain client, RESP2 and bytes, of the server that has a namespace; the driver's types say too little."""
    target = parse(url, keys_of(namespace).prefix)
    options: dict[str, Any] = {**target.options, "connection_class": connection_class(target), "protocol": 2}
    if target.seeds:
        options["host"], options["port"] = node_of(target, 5.0)
    return redis.Redis(connection_pool=cast(Any, redis.ConnectionPool)(**options))


# Keys of one command.
PAGE = 1000


class Takeover:
    """One application and the server of its test.

    Attributes:
        namespace: drawn for this test.
    """

    def __init__(self, app: Headrace) -> None:
        self.namespace = f"test-{os.urandom(6).hex()}"
        self._app = app
        self._client: Any = None
        self._back: Callable[[], None] | None = None

    @property
    def begun(self) -> bool:
        """Whether the application uses the server of the test."""
        return self._back is not None

    def begin(self, url: str, wire: Wire, progress: Callable[[], int | None]) -> Settings:
        """Have the application use this server; the settings with which it does. ``progress``: see KitListener."""
        settings = msgspec.structs.replace(
            self._app.settings, url=url, credentials=None, password_file=None, namespace=self.namespace,
            stats="direct", stats_url=None,
        )  # fmt: skip
        self._client = connection(url, self.namespace)
        self._clock = wire.clock
        self._astore = AsyncKitStore(url, settings, wire)
        stores = {
            "store": KitStore(url, settings, wire),
            "astore": self._astore,
            "ends": KitListener(url, settings, wire.clock, progress),
        }
        self._back = self._app.move(settings, stores)
        return settings

    def give_back(self) -> None:
        """Have it use its own server again; what it still held for that of the test, it sends there before."""
        back, self._back = self._back, None
        if back is not None:
            back()
            self._astore.leave_to_loop()

    def problems(self, dead: set[str]) -> list[str]:
        """What is wrong with the keys, a sentence each; incarnations that are ``dead`` may hold jobs."""
        found: list[str] = []
        for space in read(self._client, self.namespace):
            found += sorted(set(breaches(space, self._clock.offset)))
            for owner in space.values["claims"].keys() - dead:
                found += [f"job {id} still runs" for id in space.values["claims"][owner]]
        return found

    def expire(self, by: int) -> None:
        """Let this many microseconds pass for what the server itself lets expire."""
        for keys in self._pages():
            pipe = self._client.pipeline(transaction=False)
            for key in keys:
                pipe.pttl(key)
            for key, left in zip(keys, pipe.execute(), strict=True):
                if left >= 0:
                    pipe.pexpire(key, max(0, left - by // 1000))
            pipe.execute()

    def end(self) -> None:
        for keys in self._pages():
            self._client.unlink(*keys)
        self._client.close()

    def _pages(self) -> Iterator[list[bytes]]:
        keys = list(self._client.scan_iter(match=f"{{{self.namespace}:*", count=PAGE))
        for first in range(0, len(keys), PAGE):
            yield keys[first : first + PAGE]
