"""A no-op that gets a process of its own."""

from __future__ import annotations

import os

from bench.tally import tick
from headrace import Headrace

app = Headrace(os.environ["HEADRACE_URL"])


@app.task(result_ttl=0, kind="fork")
def noop() -> None:
    tick()


def bulk(count: int) -> None:
    app.enqueue_many(noop.job() for _ in range(count))
