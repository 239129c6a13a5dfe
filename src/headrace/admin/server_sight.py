"""What the doctor and a worker's preflight ask a server about itself: one connection, closed before it returns."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redis import exceptions as driver
from redis.crc import key_slot

from headrace.model.environment import Sight, fields
from headrace.protocol.durability import durability
from headrace.protocol.keys import Keys
from headrace.protocol.script import text_of
from headrace.settings import Settings
from headrace.store.raw_connection import RawConnection
from headrace.store.reach import accepted
from headrace.store.url import Target

# Round trips of one measurement at most; the better of two counts, since a busy moment is not a slow network.
TRIPS = 50
_LOCAL = ("localhost", "127.0.0.1", "::1", "")


def sight_of(
    target: Target, settings: Settings, patience: float, *,
    shards: Sequence[tuple[str, Keys]] = (), measured: bool = True,
) -> Sight:  # fmt: skip
    """Ask a server what it says of itself; what it refuses to tell is None.

    Args:
        patience: seconds that one reply may take.
        shards: URL and keys of each shard.
        measured: measure the time of round trips, too.

    Raises:
        redis.exceptions.RedisError, OSError: it did not answer, or refuses INFO.

    Cost: one connection, two round trips, and at most a hundred more where those are measured.
    """
    with contextlib.closing(RawConnection(target, patience)) as link:
        began = time.time()
        clock, info, config, state, slots, slow, user = link.ask(
            ("TIME",), ("INFO",), ("CONFIG", "GET", "*"), ("CLUSTER", "INFO"), ("CLUSTER", "SLOTS"),
            ("SLOWLOG", "GET", 128), ("ACL", "WHOAMI"),
        )  # fmt: skip
        ended, (text,) = time.time(), accepted([info])
        trip = min(_p99(link), _p99(link)) if measured else None
    wanted, host = durability(settings), str(target.options.get("host", ""))
    remote = bool(target.sentinels or target.seeds) or host not in _LOCAL
    told = fields(text) | ({} if remote else _kernel())
    if not remote:
        told |= _swapped(told.get("process_id", ""))
    return Sight(
        told,
        config=None
        if _refused(config)
        else {text_of(config[n]): text_of(config[n + 1]) for n in range(0, len(config), 2)},
        cluster=_cluster(state, slots) if target.seeds else None,
        lease=settings.lease,
        fsync=wanted.fsync,
        replicas=wanted.replicas,
        connections=settings.max_connections,
        skew=None if _refused(clock) else _apart(int(clock[0]) + int(clock[1]) / 1e6, began, ended),
        trip=trip,
        slow=None if _refused(slow) else sum(_is_ours(entry, settings.namespace) for entry in slow),
        remote=remote,
        tls=target.tls,
        user="" if _refused(user) else text_of(user),
        allow_eviction=settings.allow_eviction,
        shares=_shares(slots, shards) if target.seeds else [*Counter(url for url, _ in shards).values()],
    )


def _refused(reply: Any) -> bool:
    return isinstance(reply, driver.RedisError) or (not reply and reply != [])


def _apart(server: float, began: float, ended: float) -> float:
    """Seconds by which two clocks differ at least: the server read its own at a time between these."""
    return max(0.0, began - server, server - ended)


def _p99(link: RawConnection) -> float:
    times: list[float] = []
    # A server that is far away or loads is not asked fifty times.
    while len(times) < TRIPS and sum(times) < 0.4:
        began = time.perf_counter()
        link.ask(("PING",))
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) * 99 // 100 - 1]


def _cluster(state: Any, slots: Any) -> dict[str, str]:
    told = {} if _refused(state) else fields(state)
    if not _refused(slots):
        told["primaries"] = str(len({owners[0][2] for _, _, *owners in slots}))
    return told


def _shares(slots: Any, shards: Sequence[tuple[str, Keys]]) -> list[int]:
    """Shards of each node of a cluster; empty: it does not tell."""
    if _refused(slots):
        return []
    shares = {owners[0][2]: 0 for _, _, *owners in slots}
    for _, keys in shards:
        slot = key_slot(keys.prefix.encode())
        for first, last, (_, _, node, *_), *_ in slots:
            shares[node] += first <= slot <= last
    return [*shares.values()]


def _is_ours(entry: Sequence[Any], namespace: str) -> bool:
    words: list[bytes] = entry[3]
    return words[0].upper() == b"EVALSHA" and any(word.startswith(f"{{{namespace}:".encode()) for word in words)


def _kernel() -> dict[str, str]:
    found: dict[str, str] = {}
    for name, path in (
        ("overcommit_memory", "/proc/sys/vm/overcommit_memory"),
        ("transparent_hugepage", "/sys/kernel/mm/transparent_hugepage/enabled"),
    ):
        with contextlib.suppress(OSError):
            found[name] = Path(path).read_text().strip()
    return found


def _swapped(pid: str) -> dict[str, str]:
    """Kilobytes of a server of this machine that are on the disk; nothing where its process has another number here."""
    with contextlib.suppress(OSError, ValueError):
        lines = Path(f"/proc/{int(pid)}/status").read_text().splitlines()
        facts = dict(line.split(":", 1) for line in lines if ":" in line)
        if "VmSwap" in facts and any(name in facts.get("Name", "") for name in ("redis", "valkey")):
            return {"swapped": facts["VmSwap"].split()[0]}
    return {}
