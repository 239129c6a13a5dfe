"""The table of checks: what each row finds, and what a server that tells nothing leaves unknown."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.model.environment import CHECKS, Sight, judged

GOOD = {
    "maxmemory_policy": "noeviction", "evicted_keys": "0", "used_memory": "10", "maxmemory": "100",
    "total_system_memory": "1000", "aof_enabled": "1", "rdb_last_bgsave_status": "ok", "aof_last_write_status": "ok",
    "connected_slaves": "0", "connected_clients": "5", "overcommit_memory": "1", "transparent_hugepage": "[madvise]",
    "swapped": "120", "loading": "0", "role": "master",
}  # fmt: skip
CONFIG = {
    "appendfsync": "everysec", "save": "3600 1", "timeout": "0", "maxclients": "10000", "min-replicas-to-write": "1",
    "cluster-node-timeout": "5000", "cluster-require-full-coverage": "no",
}  # fmt: skip
FACTS: dict[str, Any] = {"skew": 0.0, "trip": 0.001, "slow": 0, "connections": 10}


def sight(config: dict[str, str] | None = None, info: dict[str, str] | None = None, **facts: Any) -> Sight:
    return Sight(GOOD | (info or {}), CONFIG | (config or {}), **(FACTS | facts))


def test_a_good_server_has_no_finding() -> None:
    assert judged(sight()) == []


WRONG: dict[str, Sight] = {
    "eviction-policy": sight(info={"maxmemory_policy": "allkeys-lru"}),
    "evicted": sight(info={"evicted_keys": "3"}),
    "full": sight(info={"used_memory": "95"}),
    "last-save": sight(info={"rdb_last_bgsave_status": "err"}),
    "last-append": sight(info={"aof_last_write_status": "err"}),
    "persistence": sight({"save": ""}, {"aof_enabled": "0"}),
    "loading": sight(info={"loading": "1", "loading_loaded_perc": "12.50", "loading_eta_seconds": "3"}),
    "replica": sight(info={"role": "slave", "master_host": "h", "master_port": "1", "master_link_status": "down"}),
    "refusing": sight(info={"min_slaves_good_slaves": "0"}),
    "replicas": sight(replicas=2, info={"connected_slaves": "1"}),
    "least-replicas": sight({"min-replicas-to-write": "0"}, {"connected_slaves": "1"}),
    "primaries": sight(cluster={"primaries": "2"}),
    "node-timeout": sight({"cluster-node-timeout": "6000"}, cluster={"primaries": "3"}),
    "full-coverage": sight({"cluster-require-full-coverage": "yes"}, cluster={"primaries": "3"}),
    "uneven-shards": sight(shares=(3, 1)),
    "clock": sight(skew=4.0),
    "clock-skew": sight(skew=0.2),
    "memory-limit": sight(info={"maxmemory": "0"}),
    "clients": sight({"maxclients": "15"}),
    "idle-timeout": sight({"timeout": "300"}),
    "kernel": sight(info={"transparent_hugepage": "[always] never"}),
    "swap": sight(info={"swapped": "200000"}),
    "slow-scripts": sight(slow=2),
    "round-trip": sight(trip=0.02),
    "user": sight(remote=True, tls=True, user="default"),
    "tls": sight(remote=True, tls=False),
}


def test_each_row_is_tried() -> None:
    assert WRONG.keys() == {check.id for check in CHECKS}


@pytest.mark.parametrize("id", WRONG)
def test_each_fault_is_found_and_nothing_else(id: str) -> None:
    (found,) = judged(WRONG[id])
    assert found.id == id
    assert found.evidence[0]
    assert found.command
    worker = next(check.worker for check in CHECKS if check.id == id)
    assert bool(judged(WRONG[id], worker=True)) == worker


def test_shards_are_even_that_no_move_would_spread_better() -> None:
    assert judged(sight(shares=(2, 1, 1))) == judged(sight(shares=(1, 0, 0))) == []


def test_fsync_asks_for_each_write_on_the_disk() -> None:
    (found,) = judged(sight(fsync=True))
    assert (found.id, found.evidence) == ("persistence", ("appendfsync everysec",))
    assert judged(sight({"appendfsync": "always"}, fsync=True)) == []
    assert judged(sight(info={"maxmemory_policy": "allkeys-lru"}, allow_eviction=True)) == []


def test_what_a_server_does_not_tell_is_unknown_never_fine() -> None:
    silent = judged(Sight({}))
    assert {one.severity for one in silent} == {"unknown"}
    assert {one.id for one in silent} >= {
        "eviction-policy",
        "evicted",
        "persistence",
        "clock",
        "kernel",
        "slow-scripts",
    }
    assert judged(Sight({}), worker=True) == []
