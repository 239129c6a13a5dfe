"""Limited tasks for the benchmark of limits.

Each start of ``limited`` adds its token, the server's time of its claim, and the time of its first line to the file
``BENCH_TOKENS``; those of ``hold`` write lines to ``BENCH_LEDGER``, as jobs of ``bench.app`` do.
"""

from __future__ import annotations

import itertools
import os
import struct
import time
from pathlib import Path

from bench.produce import mark
from headrace import Concurrency, Headrace, Rate, current_job

app = Headrace(os.environ["HEADRACE_URL"])
rate = app.limit("rate", Rate(int(os.environ.get("BENCH_RATE", "1")), per=1))
one = app.limit("one", Concurrency(1))
fair = app.limit("fair", by="account")

# Opened before the fork: appends of sixteen bytes are whole, whichever process makes them.
_FILE = os.open(os.environ.get("BENCH_TOKENS", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
_NEW = itertools.count()


@app.task(limits=[rate], result_ttl=0)
def limited() -> None:
    os.write(_FILE, struct.pack("<QQ", current_job().token, time.time_ns() // 1000))


@app.task(limits=[one], result_ttl=0)
def hold(name: str) -> None:
    """The first start never returns; the next one does at once."""
    ledger = Path(os.environ["BENCH_LEDGER"])
    line = f"{name} {os.getpid()} {time.monotonic_ns()}\n"
    with ledger.open("ab", buffering=0) as out:
        out.write(line.encode())
    if sum(1 for other in ledger.read_text().splitlines() if other.split()[0] == name) == 1:
        time.sleep(600)


@app.task(limits=[fair], result_ttl=0)
def busy(account: str) -> None:  # noqa: ARG001 - the limit goes by it
    time.sleep(0.01)


@app.task(limits=[fair], result_ttl=0)
def newcomer(account: str) -> None:  # noqa: ARG001 - the limit goes by it
    mark(time.monotonic_ns())


def bulk(count: int) -> None:
    """Enqueue so many of the limited ones."""
    app.enqueue_many(limited.job() for _ in range(count))


def holding(count: int) -> None:
    """Enqueue so many of which one at once runs."""
    app.enqueue_many(hold.job(f"h{n}") for n in range(count))


def backlog(count: int) -> None:
    """Enqueue so many of one value, which each take 10 ms."""
    app.enqueue_many(busy.job("busy") for _ in range(count))


def stamp() -> None:
    """Enqueue the first job of a new value."""
    newcomer.enqueue(f"new{next(_NEW)}")
