"""Headrace's application for the benchmarks, and the producer's verbs of ``bench.produce``.

Jobs of the mixed and kill benchmarks write one line each to the file ``BENCH_LEDGER``: what they are, the
process, and when their first line ran, on the clock that all processes of a machine share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from bench.produce import mark
from bench.tally import tick
from headrace import Flow, Headrace, current_job

app = Headrace(os.environ["HEADRACE_URL"])


@app.task(result_ttl=0)
def noop() -> None:
    tick()


@app.task(result_ttl=0)
def first_line() -> None:
    mark(time.monotonic_ns())


@app.task(result_ttl=0)
def greet(user: int, name: str) -> None:
    pass


def _enter(kind: str, started: int) -> int:
    """Append a line to the ledger; returns how many lines of this kind are there now."""
    ledger = Path(os.environ["BENCH_LEDGER"])
    line = f"{kind} {os.getpid()} {started}\n".encode()
    # One write to a file opened for appending: lines of several processes do not mix.
    with ledger.open("ab", buffering=0) as out:
        out.write(line)
    return sum(1 for other in ledger.read_text().splitlines() if other.split()[0] == kind)


@app.task(result_ttl=0)
def sleep(kind: str, seconds: float) -> None:
    started = time.monotonic_ns()
    time.sleep(seconds)
    ledger = Path(os.environ["BENCH_LEDGER"])
    with ledger.open("ab", buffering=0) as out:
        out.write(f"{kind} {os.getpid()} {started} {time.monotonic_ns()}\n".encode())


@app.task(result_ttl=60)
def claimed(seconds: float) -> None:
    """Tell who ran this and when it was claimed: a start's token is the server's time of its claim."""
    time.sleep(seconds)
    job = current_job()
    with Path(os.environ["BENCH_LEDGER"]).open("ab", buffering=0) as out:
        out.write(f"{job.id} {os.getppid()} {job.token} {job.attempt}\n".encode())


@app.task(result_ttl=0)
def hang_once(kind: str) -> None:
    """The first start never returns; the next one does at once."""
    if _enter(kind, time.monotonic_ns()) == 1:
        time.sleep(600)


@app.task
def kept() -> None:
    pass


@app.task
def last() -> None:
    mark(time.monotonic_ns())


@app.workflow
def wide(flow: Flow, width: int) -> None:
    first = flow.run(kept)
    flow.run(last, after=[flow.run(kept, after=first) for _ in range(width)])


@app.workflow
def one(flow: Flow) -> None:
    flow.run(kept)


def fan(width: int) -> Callable[[], object]:
    return wide.create(width).start


@app.workflow
def chain(flow: Flow, length: int) -> None:
    node = flow.run(kept)
    for _ in range(length - 1):
        node = flow.run(kept, after=node)


def waiting_fan(width: int) -> None:
    wide.create(width)


def waiting_chain(length: int) -> None:
    chain.create(length)


def burst(count: int) -> Callable[[], object]:
    jobs = [*(kept.job() for _ in range(count - 1)), last.job()]
    return lambda: app.enqueue_many(jobs)


def single() -> None:
    noop.enqueue()


def stamp() -> None:
    first_line.enqueue()


def bulk(count: int) -> None:
    app.enqueue_many(noop.job() for _ in range(count))


def small(count: int) -> None:
    app.enqueue_many(greet.job(number, "welcome") for number in range(count))


def mixed(seed: int) -> None:
    """2,000 jobs of 1 ms with 12 of 2 s at random places among them; the places depend on ``seed`` alone."""
    import random

    places = set(random.Random(seed).sample(range(2012), 12))
    app.enqueue_many(sleep.job("long", 2.0) if n in places else sleep.job("short", 0.001) for n in range(2012))


def hanging(count: int) -> None:
    app.enqueue_many(hang_once.job(f"hang-{number}") for number in range(count))
