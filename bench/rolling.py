"""Rolling: a worker is replaced every 5 s under load, for a minute; what is lost, charged, and how long nobody claims.

A start's token is the server's time of its claim, in microseconds, so the longest gap between two claims is the
longest between two tokens, whoever claimed. Runners always have work waiting, and some of it takes longer than the
overlap of two images.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from bench.context import Context
from bench.figure import Bar, Figure
from bench.ledger import ledger
from bench.processes import BenchError, Group, wait_until
from bench.servers import Server, server
from bench.systems import HEADRACE
from headrace import Headrace
from headrace.tasks.submission import UnsentJob

_EVERY, _RUNNERS, _SHUTDOWN_TIMEOUT = 5.0, 4, 30
_SHORT, _LONG = 0.01, 2.0
#: Jobs that wait at least, so that a claim is never short of any.
_WAITING = 300


@dataclass(frozen=True, slots=True)
class Told:
    """One start: the job, the supervisor above it, the time of its claim (microseconds), which attempt it was."""

    id: str
    image: int
    token: int
    attempt: int


def _told(path: Path) -> list[Told]:
    rows = (line.split() for line in path.read_text().splitlines())
    return [Told(id, int(image), int(token), int(attempt)) for id, image, token, attempt in rows]


def _jobs(app: Headrace, seconds: float, count: int) -> list[UnsentJob[None]]:
    return [app.by_name("bench.app.claimed").job(seconds) for _ in range(count)]


def _drive(app: Headrace, worker: Group, path: Path, seconds: float) -> tuple[int, int]:
    """Load and roll for so long; how many jobs were enqueued, and how many images there were."""
    began = time.monotonic()
    enqueued, images, roll_at, long_at = 0, 1, began + _EVERY, began
    queue = app.queues["default"]
    while (now := time.monotonic()) < began + seconds:
        worker.check()
        if queue.size < _WAITING:
            enqueued += app.enqueue_many(_jobs(app, _SHORT, _WAITING))
        if now >= long_at:
            long_at += 1.0
            enqueued += app.enqueue_many(_jobs(app, _LONG, 1))
        if now >= roll_at:
            roll_at += _EVERY
            os.kill(worker.pid, signal.SIGHUP)
            seen = images
            wait_until(lambda n=seen: len({told.image for told in _told(path)}) > n, "new code that claims", 30, 0.05)
            images += 1
        time.sleep(0.02)
    return enqueued, images


def _measure(context: Context, target: Server, seconds: float) -> list[Figure]:
    words = (*HEADRACE.worker[:-1], str(_RUNNERS), "--reload=hup", "--shutdown-timeout", f"{_SHUTDOWN_TIMEOUT}s")
    with ledger() as path, Headrace(target.url) as app:
        system = replace(HEADRACE, worker=words, env={"BENCH_LEDGER": str(path)})
        with context.worker(system, target) as worker:
            app.enqueue_many(_jobs(app, _SHORT, 10))
            wait_until(lambda: len(_told(path)) == 10, "the worker's first jobs")
            enqueued, images = _drive(app, worker, path, seconds)

            def done() -> bool:
                worker.check()
                return int(target.client.eval(HEADRACE.unsettled, 0)) == 0

            wait_until(done, "the last jobs", 60, 0.05)
        told = _told(path)
    if images < 2:
        raise BenchError("nothing was rolled")
    return _figures(told, enqueued + 10, images)


def _figures(told: list[Told], jobs: int, images: int) -> list[Figure]:
    ended = Counter(one.id for one in told)
    tokens = sorted(one.token for one in told)
    gap = max(later - earlier for earlier, later in pairwise(tokens)) / 1000
    charged = sum(one.attempt - 1 for one in told)
    name = f"rolling restart every {_EVERY:g} s"
    return [
        Figure(f"{name}: jobs lost", jobs - len(ended), "jobs", bar=Bar("at most", 0), note=f"{jobs} jobs"),
        Figure(f"{name}: starts beyond the first", charged, "starts", bar=Bar("at most", 0), note=f"{images} images"),
        Figure(f"{name}: longest gap between claims", gap, "ms", bar=Bar("at most", 1000)),
    ]


def run(context: Context) -> list[Figure]:
    """What a minute of rolling restarts costs."""
    seconds = 15.0 if context.quick else 60.0
    context.say(f"rolling: {seconds:g} s")
    with server() as target:
        return _measure(context, target, seconds)
