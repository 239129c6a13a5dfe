"""A real failover behind Sentinel: the cache follows to the promoted server, and serves nothing of the old one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace import Headrace
from tests.servers import Server
from tests.store.test_sentinel import master, replica, sentinel

pytestmark = [pytest.mark.slow, pytest.mark.system]
__all__ = ["master", "replica", "sentinel"]


def test_the_promoted_server_is_believed(
    master: Server, replica: Server, sentinel: int, new_app: Callable[..., Headrace],
    eventually: Callable[..., Any],
) -> None:  # fmt: skip
    url = f"sentinel://127.0.0.1:{sentinel}/jobs/0"
    cache, other = new_app(url, timeout=60.0).cache, new_app(url, timeout=60.0).cache
    for n in range(20):
        other.set(str(n), "old")
    assert all(cache.get(str(n)) == "old" for n in range(20))
    eventually(lambda: replica.client().dbsize() == master.client().dbsize(), what="replication")
    master.kill()
    eventually(lambda: not cache._values)
    for n in range(20):
        other.set(str(n), "new")
        assert cache.get(str(n), "new") == "new"
    assert replica.client().info("replication")["role"] == "master"
    eventually(lambda: cache.statistics().healthy)
    assert all(cache.get(str(n)) == "new" for n in range(20))
    other.set("0", "newer")
    eventually(lambda: cache.get("0") == "newer")
