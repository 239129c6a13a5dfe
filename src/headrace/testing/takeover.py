"""An application on another server for the length of a test, in a namespace of its own there.

Owns the keys of that namespace: what is left in them is told, then they go.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from headrace.app import Headrace
from headrace.settings import Settings
from headrace.testing import keyspace_reading, keyspaces
from headrace.testing.kit_listener import KitListener
from headrace.testing.kit_store import AsyncKitStore, KitStore, Wire
from headrace.testing.private_server import connection

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
        found = sorted(keyspaces.violations(self._client, self.namespace, ahead=self._clock.offset))
        for space in keyspace_reading.read(self._client, self.namespace):
            for owner in space.values["claims"].keys() - dead:
                found += [f"job {id} still runs" for id in space.values["claims"][owner]]
        return found

    def expire(self, by: int) -> None:
        """Let so many microseconds pass for what the server itself lets expire."""
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
