"""What the cache asks of the server: read, store, lease, delete, drop by tag. Reading with tracking is the link's.

Every call may be repeated. A repeated store or deletion takes effect as if it had come last, which a concurrent one
may anyway; a repeated store under a lease is refused, since the first one used the lease up. A repeated lease is
shared with the caller that got the first reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.model.job_record import Page
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call, load, text_of

# Seconds that a value may take to compute: a lease that has ended is a value not stored. The lease of a process that is
# killed stays for as long, and holds up no caller: others wait for it only as long as they said.
LEASE = 600
# Values that one call deletes: others must be served in between.
CHUNK = 1000
ALL = "*"


class Turn(msgspec.Struct, frozen=True):
    """Whether to compute now, or after ``left`` seconds, in which another caller may store.

    Attributes:
        lease: the right to store; empty when there is a value.
        first: others wait for this one, who must release the lease if nothing comes of it.
    """

    lease: str
    left: float
    first: bool


class Dropped(msgspec.Struct, frozen=True):
    names: list[str]
    left: int


class CachedValue(msgspec.Struct, frozen=True):
    """A value on the server: its bytes, and when it ends, microseconds."""

    name: str
    end: int
    size: int
    tags: tuple[str, ...]


class CachedPage(Page[CachedValue], frozen=True):
    """Cached values, those that end soonest first. ``now``: server time, microseconds."""

    now: int


def payload(stored: bytes) -> bytes:
    return stored.partition(b"\n")[2]


def read(keys: Keys, name: str) -> Call[bytes | None]:
    return load("cache_get").bind(keys, lambda reply: reply, name=name)


def store(keys: Keys, name: str, data: bytes, ttl: float, tags: Sequence[str] = (), lease: str = "") -> Call[bool]:
    """Store a value for ``ttl`` seconds; False when ``lease`` was given and does not hold any more."""
    milliseconds = max(1, round(ttl * 1000))
    return load("cache_set").bind(
        keys, lambda reply: bool(reply == b"stored"), name=name, data=data, ttl=milliseconds, tags=",".join(tags),
        lease=lease,
    )  # fmt: skip


def lease(keys: Keys, name: str, tags: Sequence[str] = (), wait: float = 0.0) -> Call[Turn]:
    """The right to store an absent value; another computation has ``wait`` seconds before this one begins, too.

    All who compute at the same time share it, the first to store uses it up, and any write or deletion of the value,
    and any deletion of one of its tags, ends it. The idea is from "Scaling Memcache at Facebook" (NSDI 2013).
    """
    return load("cache_lease").bind(
        keys, lambda reply: Turn(reply[0].decode(), reply[1] / 1e6, reply[2] == 1), name=name, tags=",".join(tags),
        life=LEASE, wait=round(wait * 1e6),
    )  # fmt: skip


def release(keys: Keys, name: str, lease: str) -> Call[str]:
    """Give up the right to store: ``released``, or ``gone`` before. Processes that wait hear of it."""
    return load("cache_release").bind(keys, lambda reply: str(reply.decode()), name=name, lease=lease)


def probe(keys: Keys, link: str) -> Call[bool]:
    """Write and remove the key that a link has read, so that it must hear of it."""
    return load("cache_probe").bind(keys, lambda reply: bool(reply == b"ok"), link=link)


def delete(keys: Keys, names: Sequence[str]) -> Call[int]:
    """Delete at most ``CHUNK`` values and end their leases; how many there were."""
    return load("cache_delete").bind(keys, int, names=list(names))


def drop(keys: Keys, tag: str, first: bool, limit: int = CHUNK) -> Call[Dropped]:
    """Delete up to ``limit`` values that have ``tag``, or of all (``ALL``). O(limit log n)."""
    return load("cache_drop").bind(
        keys, lambda reply: Dropped([name.decode() for name in reply[0]], reply[1]), tag=tag, first=int(first),
        life=LEASE, limit=limit,
    )  # fmt: skip


def page(keys: Keys, tag: str = "", after: str = "", limit: int = 100) -> Call[CachedPage]:
    """At most 500 cached values, those with a tag if one is given; ``after`` is ``next`` of the page before."""
    end, _, name = after.partition("~")

    def parsed(reply: Any) -> CachedPage:
        at, count, flat = reply
        rows = [
            CachedValue(name.decode(), int(float(end)), size, tuple(filter(None, text_of(tags).split(","))))
            for name, end, size, tags in zip(*[iter(flat)] * 4, strict=True)
        ]
        more = f"{rows[-1].end}~{rows[-1].name}" if len(rows) == limit else None
        return CachedPage(rows, count, more, at)

    return load("cache_list").bind(keys, parsed, tag=tag, after=end, member=name, limit=limit)
