"""What the server of a store says of itself: software, memory, durability. Pure; the two stores ask for its INFO."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.model.environment import fields


class ServerFacts(msgspec.Struct, frozen=True):
    """A server.

    Attributes:
        software: such as ``valkey 9.0.1``.
        mode: standalone, sentinel or cluster; role: master or slave.
        uptime: seconds.
        clients: connections.
        memory, peak: bytes that it uses, and used at most.
        memory_limit: bytes that it may use; 0: it has no limit.
        policy: what it does when that is reached.
        append_only: whether each write goes to a file.
        last_save: whether its last snapshot was written; empty: it says nothing of that.
        unsaved: changes since the last snapshot.
        replicas: servers that follow it.
        told: all fields of its INFO.
    """

    software: str
    mode: str
    role: str
    uptime: int
    clients: int
    memory: int
    peak: int
    memory_limit: int
    policy: str
    append_only: bool
    last_save: str
    unsaved: int
    replicas: int
    told: Mapping[str, str]

    @property
    def evicted(self) -> int:
        """Keys that it removed for want of memory: each may have been a job."""
        return int(self.told.get("evicted_keys", 0))

    @property
    def full(self) -> float:
        return self.memory / self.memory_limit if self.memory_limit else 0.0


def server_facts(info: bytes) -> ServerFacts:
    said = fields(info)

    def number(name: str) -> int:
        text = said.get(name, "")
        return int(text) if text.isdecimal() else 0

    name = "valkey" if "valkey_version" in said else "redis"
    return ServerFacts(
        software=f"{name} {said.get(f'{name}_version', '')}".strip(),
        mode=said.get("server_mode", "") or said.get("redis_mode", ""),
        role=said.get("role", ""),
        uptime=number("uptime_in_seconds"),
        clients=number("connected_clients"),
        memory=number("used_memory"),
        peak=number("used_memory_peak"),
        memory_limit=number("maxmemory"),
        policy=said.get("maxmemory_policy", ""),
        append_only=said.get("aof_enabled") == "1",
        last_save=said.get("rdb_last_bgsave_status", ""),
        unsaved=number("rdb_changes_since_last_save"),
        replicas=number("connected_slaves"),
        told=said,
    )
