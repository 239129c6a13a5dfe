"""No-op jobs for the drains of ``bench.limit_drain``: without limits, with one that never binds, or with many values.

``BENCH_LIMITS`` says which: ``none``, ``loose`` or ``values``.
"""

from __future__ import annotations

import os

from bench.tally import tick
from headrace import Concurrency, Headrace, Rate
from headrace.protocol import consume
from headrace.protocol.limit_verbs import declare_limits
from headrace.tasks.limit import Limit

app = Headrace(os.environ["HEADRACE_URL"])
_OWNER, _LEASE = "bench", 60 * 10**6


def _limits() -> list[Limit]:
    kind = os.environ.get("BENCH_LIMITS", "none")
    if kind == "loose":
        return [app.limit("loose", Concurrency(1_000_000))]
    return [app.limit("value", Rate(100, per=1), Concurrency(1), by="account")] if kind == "values" else []


@app.task(name="noop", result_ttl=0, limits=_limits())
def noop(account: int) -> None:
    del account
    tick()


def bulk(count: int) -> None:
    """Jobs of as many values, whose limits the store knows, as it does beside a worker."""
    keys, kinds = app.client.keys, {"noop": "process"}
    app.client.run(consume.register(keys, _OWNER, _LEASE, [], tasks=kinds))
    app.client.run(declare_limits(keys, _OWNER, kinds, app.limits.declared()))
    app.enqueue_many(noop.job(n) for n in range(count))
    app.client.run(consume.retire(keys, _OWNER))
