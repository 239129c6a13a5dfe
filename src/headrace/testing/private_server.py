"""The private server of a test run: one for this process, in a directory of its own, without an append-only file.

Owns the server's beginning and end. It is always another one than programs of this machine use.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any, cast

import msgspec
import redis

from headrace.embedded import Embedded, attach
from headrace.protocol.keys import keys_of
from headrace.store.connection import node_of
from headrace.store.url import parse

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
    """The server of this process, started at first use; it ends with the process, or when it is closed.

    Raises:
        ServerError: no server program is installed, or it cannot be started.

    Cost: some tenths of a second the first time.
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
    options: dict[str, Any] = dict(target.options) | {"protocol": 2}
    if target.seeds:
        options["host"], options["port"] = node_of(target, 5.0)
    return redis.Redis(connection_pool=cast(Any, redis.ConnectionPool)(**options))
