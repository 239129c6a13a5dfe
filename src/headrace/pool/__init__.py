"""Threads or processes that run calls, and the strategies that choose among them.

Usable alone: needs no server and imports nothing of the job queue but its errors. What is exported here is loaded at
first use, since every process of a pool imports this package to find :mod:`headrace.pool.child`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.dispatch.load_index import Ranks as Ranks
    from headrace.dispatch.strategy import STRATEGIES as STRATEGIES
    from headrace.dispatch.strategy import Snapshot as Snapshot
    from headrace.pool.deferred import DeferredResult as DeferredResult
    from headrace.pool.events import Callbacks as Callbacks
    from headrace.pool.lease import Leased as Leased
    from headrace.pool.overrun import Alert as Alert
    from headrace.pool.overrun import Overrun as Overrun
    from headrace.pool.pool import Pool as Pool
    from headrace.pool.pool import Replies as Replies
    from headrace.pool.pool_options import PoolOptions as PoolOptions
    from headrace.pool.pool_stats import MemberStats as MemberStats
    from headrace.pool.pool_stats import PoolStats as PoolStats
    from headrace.pool.state import Call as Call

_HOMES = {
    "Alert": "pool.overrun",
    "Call": "pool.state",
    "Callbacks": "pool.events",
    "DeferredResult": "pool.deferred",
    "Leased": "pool.lease",
    "MemberStats": "pool.pool_stats",
    "Overrun": "pool.overrun",
    "Pool": "pool.pool",
    "PoolOptions": "pool.pool_options",
    "PoolStats": "pool.pool_stats",
    "Ranks": "dispatch.load_index",
    "Replies": "pool.pool",
    "STRATEGIES": "dispatch.strategy",
    "Snapshot": "dispatch.strategy",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"headrace.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
