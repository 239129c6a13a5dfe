"""What the cache asks of the server: read, store, lease, delete, drop by tag. Reading with tracking is the link's.

Every call may be repeated. A repeated store or deletion takes effect as if it had come last, which a concurrent one
may anyway; a repeated store under a lease is refused, since the first one used the lease up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.keys import Keys
from headrace.script import Call, load

# Seconds that a value may take to compute. Longer than any sane one: a lease that has ended is a value not stored.
LEASE = 3600
# Values that one call deletes: others must be served in between.
CHUNK = 1000
ALL = "*"


@dataclass(frozen=True, slots=True)
class Dropped:
    """Names of the values that went, and how many are left."""

    names: list[str]
    left: int


def payload(stored: bytes) -> bytes:
    """The MessagePack of a stored value, without its tags."""
    return stored.partition(b"\n")[2]


def read(keys: Keys, name: str) -> Call[bytes | None]:
    """A stored value, or None. Cost: one round trip."""
    return load("cache_get").bind(keys, _as_read, name=name)


def _as_read(reply: Any) -> bytes | None:
    found: bytes | None = reply
    return found


def store(
    keys: Keys, name: str, data: bytes, ttl: float, tags: Sequence[str] = (), lease: str = "", now: int = 0
) -> Call[bool]:
    """Store a value for ``ttl`` seconds; False when ``lease`` was given and does not hold any more.

    Cost: one round trip, O(tags log n).
    """
    milliseconds = max(1, round(ttl * 1000))
    return load("cache_set").bind(
        keys,
        lambda reply: bool(reply == b"stored"),
        now=now,
        name=name,
        data=data,
        ttl=milliseconds,
        tags=",".join(tags),
        lease=lease,
    )


def lease(keys: Keys, name: str) -> Call[str]:
    """The right to store an absent value that is computed from now on; empty when there is a value.

    All who compute at the same time share it, the first to store uses it up, and any write or deletion of the value,
    and any deletion of one of its tags, ends it. The idea is from "Scaling Memcache at Facebook" (NSDI 2013).

    Cost: one round trip.
    """
    return load("cache_lease").bind(keys, lambda reply: str(reply.decode()), name=name, life=LEASE)


def delete(keys: Keys, names: Sequence[str]) -> Call[int]:
    """Delete at most ``CHUNK`` values and end their leases; how many there were. Cost: one round trip."""
    return load("cache_delete").bind(keys, int, names=list(names))


def drop(keys: Keys, tag: str, first: bool, limit: int = CHUNK, now: int = 0) -> Call[Dropped]:
    """Delete up to ``limit`` values that have ``tag``, or of all (``ALL``). Cost: one round trip, O(limit log n)."""
    return load("cache_drop").bind(
        keys,
        lambda reply: Dropped([name.decode() for name in reply[0]], reply[1]),
        now=now,
        tag=tag,
        first=int(first),
        life=LEASE,
        limit=limit,
    )
