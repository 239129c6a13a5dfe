"""A no-op of the kind that the benchmark names."""

from __future__ import annotations

import os

from bench.tally import tick
from headrace import Headrace

app = Headrace(os.environ["HEADRACE_URL"])
_KIND = os.environ["BENCH_KIND"]


async def _anoop() -> None:
    tick()


def _noop() -> None:
    tick()


noop = (
    app.task(name="noop", result_ttl=0)(_anoop)
    if _KIND == "async"
    else app.task(name="noop", result_ttl=0, kind=_KIND)(_noop)
)


def bulk(count: int) -> None:
    app.enqueue_many(noop.job() for _ in range(count))
