"""What a server and its settings should be like: findings, and the one table of checks. Pure.

The doctor judges all that the server tells; a worker's preflight and the dashboard use the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

Severity = Literal["error", "warn", "unknown"]
# Ids and keys that one finding names.
MOST_EVIDENCE = 10


class Finding(msgspec.Struct, frozen=True):
    """Something that is wrong with an installation.

    Attributes:
        id: of the row of the table.
        severity: ``error``: work is lost or stands still; ``warn``: it may be; ``unknown``: it was not seen.
        meaning: what is wrong, in words.
        command: what repairs it; empty: nothing that a command could do.
        evidence: ten at most.
        count: how many there are.
    """

    id: str
    severity: Severity
    meaning: str
    command: str
    evidence: tuple[str, ...] = ()
    count: int = 1


class Sight(msgspec.Struct, frozen=True):
    """What was seen of a server.

    Attributes:
        info: the fields of INFO.
        config: those of CONFIG GET; None: the server keeps them to itself.
        cluster: those of CLUSTER INFO, with the number of ``primaries``; None: it is not a cluster.
        lease: of workers, seconds.
        fsync, replicas: what work waits for by the settings.
        connections: that one process may open.
        skew: seconds by which the clocks of server and client differ at least; None: not measured.
        trip: the p99 of round trips of an idle client, seconds; None: not measured.
        slow: scripts of Headrace in the slow log; None: not told.
        remote, tls, user: the server is on another host; TLS is used; the user of the connection.
        allow_eviction: as the setting says.
        shares: how many shards of the store each server, or each node of a cluster, has.
    """

    info: Mapping[str, str]
    config: Mapping[str, str] | None = None
    cluster: Mapping[str, str] | None = None
    lease: float = 15.0
    fsync: bool = False
    replicas: int = 0
    connections: int = 0
    skew: float | None = None
    trip: float | None = None
    slow: int | None = None
    remote: bool = False
    tls: bool = True
    user: str = "headrace"
    allow_eviction: bool = False
    shares: Sequence[int] = ()

    @property
    def full(self) -> float:
        """The part of its memory that is used; 0: it has no limit, or does not tell."""
        limit = self.amount("maxmemory")
        return self.amount("used_memory") / limit if limit else 0.0

    def number(self, name: str) -> float | None:
        return _number(self.info.get(name))

    def amount(self, name: str) -> int:
        return int(self.number(name) or 0)

    def setting(self, name: str) -> float | None:
        return _number((self.config or {}).get(name))


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


class Check(msgspec.Struct, frozen=True):
    """One row.

    Attributes:
        fault: the evidence; empty: it is as it should be; None: unknown.
        worker: a worker reports it before it starts, too.
    """

    id: str
    severity: Severity
    meaning: str
    command: str
    fault: Callable[[Sight], str | None]
    worker: bool = False


def _over(
    name: str, bound: float = 0, of: Callable[[Sight, str], float | None] = Sight.number
) -> Callable[[Sight], str | None]:
    def fault(sight: Sight) -> str | None:
        value = of(sight, name)
        return None if value is None else f"{name} {value:g}" if value > bound else ""

    return fault


def _is(name: str, *bad: str) -> Callable[[Sight], str | None]:
    def fault(sight: Sight) -> str | None:
        value = sight.info.get(name)
        return None if value is None else f"{name} {value}" if value in bad else ""

    return fault


def _policy(sight: Sight) -> str | None:
    policy = sight.info.get("maxmemory_policy")
    if policy is None:
        return None
    return "" if policy == "noeviction" or sight.allow_eviction else f"maxmemory-policy {policy}"


def _disk(sight: Sight) -> str | None:
    aof, save = sight.info.get("aof_enabled"), (sight.config or {}).get("save")
    if aof == "1":
        every = (sight.config or {}).get("appendfsync", "everysec")
        return f"appendfsync {every}" if every == "no" or (sight.fsync and every != "always") else ""
    if sight.fsync:
        return "appendonly no, and durability asks for the disk"
    return None if save is None else "appendonly no, save empty" if not save else ""


def _loading(sight: Sight) -> str | None:
    if (told := sight.info.get("loading")) != "1":
        return None if told is None else ""
    percent, left = (sight.info.get(f"loading_{name}", "?") for name in ("loaded_perc", "eta_seconds"))
    return f"{percent} % are loaded, {left} s are left"


def _replica(sight: Sight) -> str | None:
    if (role := sight.info.get("role")) != "slave":
        return None if role is None else ""
    primary, link = f"{sight.info.get('master_host')}:{sight.info.get('master_port')}", "master_link_status"
    return f"its primary is {primary}, the link to it is {sight.info.get(link)}"


def _refusing(sight: Sight) -> str | None:
    # Told only where a least number is set.
    good, least = sight.number("min_slaves_good_slaves"), sight.setting("min-replicas-to-write") or 1
    if good is None:
        return "" if "role" in sight.info else None
    return f"{good:g} of {least:g} replicas follow" if good < least else ""


def _replicas(sight: Sight) -> str | None:
    there = sight.number("connected_slaves")
    return None if there is None else f"{there:g} replicas of {sight.replicas}" if there < sight.replicas else ""


def _least_replicas(sight: Sight) -> str | None:
    if not sight.replicas and not sight.number("connected_slaves"):
        return ""
    least = sight.setting("min-replicas-to-write")
    return None if least is None else "min-replicas-to-write 0" if not least else ""


def _primaries(sight: Sight) -> str | None:
    count = _number((sight.cluster or {}).get("primaries"))
    return f"{count:g} primaries" if count is not None and 1 < count < 3 else ""


def _node_timeout(sight: Sight) -> str | None:
    if sight.cluster is None:
        return ""
    limit = sight.setting("cluster-node-timeout")
    most = sight.lease / 3 * 1000
    return None if limit is None else f"cluster-node-timeout {limit:g}, at most {most:.0f}" if limit > most else ""


def _uneven(sight: Sight) -> str | None:
    most, least = max(sight.shares, default=0), min(sight.shares, default=0)
    return f"{most} shards on one server, {least} on another" if most > least + 1 else ""


def _coverage(sight: Sight) -> str | None:
    if sight.cluster is None:
        return ""
    full = (sight.config or {}).get("cluster-require-full-coverage")
    return None if full is None else "cluster-require-full-coverage yes" if full == "yes" else ""


def _memory(sight: Sight) -> str | None:
    limit, total = sight.number("maxmemory"), sight.number("total_system_memory")
    if limit is None:
        return None
    if not limit:
        return "maxmemory 0"
    forks = sight.info.get("aof_enabled") == "1" or bool((sight.config or {}).get("save"))
    return f"maxmemory is {limit / total:.0%} of memory" if forks and total and limit > total * 0.7 else ""


def _full(sight: Sight) -> str | None:
    used, limit = sight.number("used_memory"), sight.number("maxmemory")
    if used is None or limit is None:
        return None
    return f"{used / limit:.0%} of maxmemory is used" if limit and used > limit * 0.9 else ""


def _clients(sight: Sight) -> str | None:
    most = sight.setting("maxclients") or sight.number("maxclients")
    if most is None:
        return None
    used = max(sight.number("connected_clients") or 0, sight.connections)
    return f"maxclients {most:g}, {used:g} connections" if most < 2 * used else ""


def _skew(least: float, most: float | None = None) -> Callable[[Sight], str | None]:
    def fault(sight: Sight) -> str | None:
        bound, top = least or sight.lease / 4, most or sight.lease / 4
        if sight.skew is None:
            return None
        return f"{sight.skew * 1000:.0f} ms apart" if bound < sight.skew <= (top if least else sight.skew) else ""

    return fault


def _kernel(sight: Sight) -> str | None:
    said = list[str]()
    if sight.info.get("overcommit_memory") == "0":
        said.append("overcommit_memory 0")
    if "[always]" in sight.info.get("transparent_hugepage", ""):
        said.append("transparent_hugepage always")
    # Another machine's kernel does not tell.
    return ", ".join(said) or ("" if "overcommit_memory" in sight.info else None)


# Kilobytes of a server's memory on the disk that each server has after a while.
MOST_SWAPPED = 10_240
CHECKS: tuple[Check, ...] = (
    Check(
        "eviction-policy", "error", "the server may drop jobs when memory is short",
        "redis-cli CONFIG SET maxmemory-policy noeviction", _policy,
    ),
    Check(
        "evicted", "error", "the server removed keys for want of memory: each may have been a job",
        "redis-cli CONFIG SET maxmemory-policy noeviction, then headrace doctor keyspace", _over("evicted_keys"), True,
    ),
    Check(
        "full", "warn", "the server is almost full: when it is, nothing can be enqueued",
        "redis-cli CONFIG SET maxmemory BYTES, or headrace queues purge NAME", _full,
    ),
    Check(
        "last-save", "error", "the server cannot write its snapshot: it refuses writes, and a restart loses jobs",
        "free the server's disk, then redis-cli BGSAVE", _is("rdb_last_bgsave_status", "err"), True,
    ),
    Check(
        "last-append", "error", "the server cannot write its append-only file",
        "free the server's disk, then redis-cli BGREWRITEAOF", _is("aof_last_write_status", "err"), True,
    ),
    Check(
        "persistence", "warn", "a restart of the server loses jobs that were acknowledged",
        "redis-cli CONFIG SET appendonly yes", _disk,
    ),
    Check("loading", "error", "the server loads its data: until then it does nothing else", "wait", _loading),
    Check(
        "replica", "error", "the server is a replica, and stores nothing", "write the URL of its primary", _replica
    ),
    Check(
        "refusing", "error", "the server refuses writes until more replicas follow",
        "start replicas, or redis-cli CONFIG SET min-replicas-to-write N", _refusing,
    ),
    Check("replicas", "warn", "fewer replicas follow than work waits for", "start replicas", _replicas),
    Check(
        "least-replicas", "warn", "a primary that was cut off accepts jobs that a failover loses",
        "redis-cli CONFIG SET min-replicas-to-write 1", _least_replicas,
    ),
    Check(
        "primaries", "warn", "no replica takes over when half of the cluster's primaries are gone",
        "have three primaries", _primaries, True,
    ),
    Check(
        "node-timeout", "warn", "a failover may outlast the lease and stop the jobs of workers",
        "redis-cli CONFIG SET cluster-node-timeout MILLISECONDS on each node", _node_timeout, True,
    ),
    Check(
        "full-coverage", "warn", "one node that dies without a replica stops the whole cluster",
        "redis-cli CONFIG SET cluster-require-full-coverage no on each node", _coverage, True,
    ),
    Check(
        "uneven-shards", "warn", "one server has more shards than another, and so more work",
        "headrace shards; of a cluster redis-cli --cluster reshard", _uneven,
    ),
    Check(
        "clock", "error", "the clocks of server and client are a quarter of the lease apart", "run NTP on both",
        _skew(0),
    ),
    Check("clock-skew", "warn", "the clocks of server and client are 100 ms apart", "run NTP on both", _skew(0.1)),
    Check(
        "memory-limit", "warn", "the server has no memory limit that leaves room for its forks",
        "redis-cli CONFIG SET maxmemory BYTES, at most 70 % of the machine's", _memory,
    ),
    Check(
        "clients", "warn", "the server's limit of connections is near", "redis-cli CONFIG SET maxclients N", _clients
    ),
    Check(
        "idle-timeout", "warn", "the server ends connections of idle workers", "redis-cli CONFIG SET timeout 0",
        _over("timeout", of=Sight.setting),
    ),
    Check(
        "kernel", "warn", "the kernel may refuse or slow the server's forks",
        "sysctl vm.overcommit_memory=1; echo madvise > /sys/kernel/mm/transparent_hugepage/enabled", _kernel,
    ),
    Check(
        "swap", "warn", "a part of the server's memory is on the disk: scripts that need it wait",
        "swapoff -a, or add memory", _over("swapped", MOST_SWAPPED),
    ),
    Check(
        "slow-scripts", "warn", "scripts of Headrace are in the slow log", "redis-cli SLOWLOG GET",
        lambda sight: None if sight.slow is None else f"{sight.slow} entries" if sight.slow else "",
    ),
    Check(
        "round-trip", "warn", "the way to the server is slow", "place workers near the server",
        lambda sight: None if sight.trip is None else f"p99 {sight.trip * 1000:.1f} ms" if sight.trip > 0.01 else "",
    ),
    Check(
        "user", "warn", "any client of the server may read and change jobs",
        "headrace acl worker, and give the worker a user of its own",
        lambda sight: "user default" if sight.user in ("", "default") and sight.remote else "",
    ),
    Check(
        "tls", "warn", "jobs cross the network in the clear", "write rediss:// in the URL",
        lambda sight: "no TLS" if sight.remote and not sight.tls else "",
    ),
)  # fmt: skip


def judged(sight: Sight, *, worker: bool = False) -> list[Finding]:
    """Findings, the errors first. ``worker``: only what it reports before it starts, and nothing that is unknown."""
    found: list[Finding] = []
    for check in CHECKS:
        if worker and not check.worker:
            continue
        evidence = check.fault(sight)
        if evidence is None and not worker:
            found.append(Finding(check.id, "unknown", "the server does not tell", ""))
        elif evidence:
            found.append(Finding(check.id, check.severity, check.meaning, check.command, (evidence,)))
    return sorted(found, key=lambda one: ("error", "warn", "unknown").index(one.severity))


def fields(info: bytes | str) -> dict[str, str]:
    text = info.decode("utf-8", "replace") if isinstance(info, bytes) else info
    return {name: value for name, _, value in (line.partition(":") for line in text.splitlines()) if value}
