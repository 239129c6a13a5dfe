"""RQ: results not kept; many jobs go in one pipeline of a thousand, as its guide advises."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from redis import Redis
from rq import Queue

from bench.produce import mark
from bench.tally import tick

queue = Queue("default", connection=Redis.from_url(os.environ["BENCH_URL"]))


def noop() -> None:
    tick()


def first_line() -> None:
    mark(time.monotonic_ns())


def greet(user: int, name: str) -> None:
    pass


def single() -> None:
    queue.enqueue(noop, result_ttl=0)


def stamp() -> None:
    queue.enqueue(first_line, result_ttl=0)


def _chunked(jobs: Iterator[Any], size: int = 1000) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    for job in jobs:
        chunk.append(job)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def bulk(count: int) -> None:
    for chunk in _chunked(Queue.prepare_data(noop, result_ttl=0) for _ in range(count)):
        queue.enqueue_many(chunk)


def small(count: int) -> None:
    jobs = (Queue.prepare_data(greet, (number, "welcome"), result_ttl=0) for number in range(count))
    for chunk in _chunked(jobs):
        queue.enqueue_many(chunk)


def fan(width: int) -> Callable[[], object]:
    """One, then many, then one, by its dependencies: it has no way to store them before they start."""

    def start() -> None:
        first = queue.enqueue(noop)
        middle = [queue.enqueue(noop, depends_on=first) for _ in range(width)]
        queue.enqueue(first_line, depends_on=middle)

    return start
