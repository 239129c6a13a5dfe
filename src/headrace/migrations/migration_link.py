"""The connection of a migration: one server, asked without the checks that refuse a store under migration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import exceptions as driver

from headrace.errors import HeadraceError, ServerError, StoreUnavailable
from headrace.migrations.step import Command, raw
from headrace.settings import Settings
from headrace.store.raw_connection import RawConnection
from headrace.store.reach import examined
from headrace.store.url import Target
from headrace.store.verdict import verdict


class MigrationLink:
    """Connects at its first use, and anew after an error."""

    def __init__(self, target: Target, settings: Settings) -> None:
        self._target, self._settings = target, settings
        self._connection: RawConnection | None = None

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands; their replies, errors among them as values. Cost: one round trip."""
        try:
            if self._connection is None:
                self._connection = self._connect()
            return self._connection.ask(*raw(commands))
        except (driver.RedisError, OSError) as error:
            self.close()
            raise self.fault(error) from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> RawConnection:
        connection = RawConnection(self._target, self._settings.timeout)
        try:
            examined(connection, self._target, self._settings.allow_eviction)
        except BaseException:
            connection.close()
            raise
        return connection

    def fault(self, error: Exception) -> HeadraceError:
        word = verdict(error, self._target, "migrate")
        if isinstance(word, HeadraceError):
            return word
        if word == "load":
            return ServerError(f"{self._target.shown} answered: {error}")
        return StoreUnavailable(
            f"{self._target.shown} does not answer ({error}): run headrace migrate again when it does, it goes on "
            f"where it was"
        )


def run_id(info: bytes) -> str:
    lines = dict(line.split(":", 1) for line in info.decode("utf-8", "replace").splitlines() if ":" in line)
    return lines.get("run_id", "")
