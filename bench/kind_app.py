"""A no-op of the kind that the benchmark names."""

from __future__ import annotations

import os

from bench.tally import tick
from headrace import Headrace

app = Headrace(os.environ["HEADRACE_URL"])


match os.environ["BENCH_KIND"]:
    case "async":

        @app.task(name="noop", result_ttl=0)
        async def noop() -> None:
            tick()

    case "thread":

        @app.task(name="noop", result_ttl=0, kind="thread")
        def noop() -> None:
            tick()

    case "fork":

        @app.task(name="noop", result_ttl=0, kind="fork")
        def noop() -> None:
            tick()

    case _:

        @app.task(name="noop", result_ttl=0)
        def noop() -> None:
            tick()


def bulk(count: int) -> None:
    app.enqueue_many(noop.job() for _ in range(count))
