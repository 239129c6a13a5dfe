"""Huey: blocking pops, results not stored. A job that runs when its worker is killed is lost: Huey has no
other mode.
"""

from __future__ import annotations

import os
import time

from huey import RedisHuey

from bench.produce import mark
from bench.tally import tick

huey = RedisHuey("bench", url=os.environ["BENCH_URL"], results=False)


@huey.task()
def noop() -> None:
    tick()


@huey.task()
def first_line() -> None:
    mark(time.monotonic_ns())


@huey.task()
def greet(user: int, name: str) -> None:
    pass


def single() -> None:
    noop()


def stamp() -> None:
    first_line()


def bulk(count: int) -> None:
    """One at a time: Huey has no call for many."""
    for _ in range(count):
        noop()


def small(count: int) -> None:
    for number in range(count):
        greet(number, "welcome")
