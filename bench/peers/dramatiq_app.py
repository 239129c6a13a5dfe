"""Dramatiq: acknowledged after the run, no results, its default middleware."""

from __future__ import annotations

import os
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.produce import mark
from bench.tally import tick

broker = RedisBroker(url=os.environ["BENCH_URL"])
dramatiq.set_broker(broker)


@dramatiq.actor
def noop() -> None:
    tick()


@dramatiq.actor
def first_line() -> None:
    mark(time.monotonic_ns())


@dramatiq.actor
def greet(user: int, name: str) -> None:
    pass


def single() -> None:
    noop.send()


def stamp() -> None:
    first_line.send()


def bulk(count: int) -> None:
    """One at a time: Dramatiq has no call for many."""
    for _ in range(count):
        noop.send()


def small(count: int) -> None:
    for number in range(count):
        greet.send(number, "welcome")
