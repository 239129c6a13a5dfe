"""Runs calls as a user of the server who may do no more than the script's header and body say.

So a script that reaches for a key, a channel or a command beyond its header fails in whichever test takes that branch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import redis

from headrace.protocol.access import commands_of
from headrace.protocol.script import Call, Script
from headrace.protocol.script_header import Key

USER = "only-what-is-declared"


def _start(key: Key, prefix: str) -> str:
    return prefix + key.constant + ("*" if key.hole else "")


@cache
def _of_script(script: Script, prefix: str) -> tuple[str, ...]:
    """What every call of a script may do."""
    header = script.header
    return (
        "resetkeys", "resetchannels", "nocommands",
        "+evalsha", *(f"+{name}" for name in sorted(commands_of(script))),
        *(f"~{_start(key, prefix)}" for key in header.derives),
        *(f"&{_start(channel, prefix)}" for channel in header.channels),
    )  # fmt: skip


def rules(call: Call[Any], prefix: str) -> list[str]:
    """Access rules for one call: its declared keys by name, its derived keys by pattern, its channels, its commands."""
    return [*_of_script(call.script, prefix), *(f"~{key}" for key in call.keys)]


class Guard:
    """A connection of the restricted user, and the administrator who sets its limits before each call."""

    def __init__(self, admin: redis.Redis, prefix: str) -> None:
        self._admin: Any = admin
        self._prefix = prefix
        self._rules: list[str] = []
        self._admin.execute_command("ACL", "SETUSER", USER, "on", "nopass", "+auth")
        options = admin.connection_pool.connection_kwargs | {"username": USER, "password": "any"}
        kind = admin.connection_pool.connection_class
        self._client: Any = redis.Redis(
            connection_pool=redis.ConnectionPool(connection_class=kind, max_connections=1, **options)
        )
        self._client.connection_pool.reset()

    def run(self, call: Call[Any]) -> Any:
        wanted = rules(call, self._prefix)
        if wanted != self._rules:
            self._admin.execute_command("ACL", "SETUSER", USER, *wanted)
            self._rules = wanted
        try:
            return self._client.execute_command(*call.command())
        except redis.exceptions.NoScriptError:
            self._admin.execute_command("SCRIPT", "LOAD", call.script.text)
            return self._client.execute_command(*call.command())

    def close(self) -> None:
        self._client.close()
        self._client.connection_pool.disconnect()
        self._admin.execute_command("ACL", "DELUSER", USER)
