"""Threads or processes that run calls, and the strategies that choose among them.

Usable alone: needs no server and imports nothing of the job queue but its errors. What is exported here is loaded at
first use, since every process of a pool imports this package to find :mod:`headrace.pool.child`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.dispatch import STRATEGIES as STRATEGIES
    from headrace.dispatch import LoadIndex as LoadIndex
    from headrace.dispatch import Snapshot as Snapshot
    from headrace.pool.events import Alert as Alert
    from headrace.pool.events import Callbacks as Callbacks
    from headrace.pool.events import MemberStats as MemberStats
    from headrace.pool.events import Overrun as Overrun
    from headrace.pool.events import PoolOptions as PoolOptions
    from headrace.pool.events import PoolStats as PoolStats
    from headrace.pool.members import Leased as Leased
    from headrace.pool.pool import Pool as Pool
    from headrace.pool.pool import Replies as Replies
    from headrace.pool.state import Call as Call
    from headrace.pool.threads import DeferredResult as DeferredResult

_HOMES = {
    name: home
    for home, names in {
        "dispatch": "LoadIndex STRATEGIES Snapshot",
        "pool.events": "Alert Callbacks MemberStats Overrun PoolOptions PoolStats",
        "pool.members": "Leased",
        "pool.pool": "Pool Replies",
        "pool.state": "Call",
        "pool.threads": "DeferredResult",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"headrace.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
