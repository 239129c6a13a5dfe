"""Celery: acknowledged after the run, results ignored, and the large prefetch that its guide advises for
short tasks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from celery import Celery, chord

from bench.produce import mark
from bench.tally import tick

_URL = os.environ["BENCH_URL"].replace("unix://", "redis+socket://")
# The result backend is used by chords alone.
app = Celery("bench", broker=_URL, backend=_URL)
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=64,
    broker_connection_retry_on_startup=True,
)


@app.task
def noop() -> None:
    tick()


@app.task
def first_line() -> None:
    mark(time.monotonic_ns())


@app.task
def greet(user: int, name: str) -> None:
    pass


def single() -> None:
    noop.delay()


def stamp() -> None:
    first_line.delay()


def bulk(count: int) -> None:
    """One at a time over one producer, which saves the look-up in the pool for each."""
    with app.producer_pool.acquire(block=True) as producer:
        for _ in range(count):
            noop.apply_async(producer=producer)


def small(count: int) -> None:
    for number in range(count):
        greet.delay(number, "welcome")


@app.task(ignore_result=False)
def member() -> None:
    pass


def fan(width: int) -> Callable[[], object]:
    """One, then many, then one: a chord behind a first task."""
    return (member.si() | chord([member.si() for _ in range(width)], first_line.si())).delay
