"""A worker whose supervisor warms the cache up: it forks clean, and every kind of runner hears of changes itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import Headrace
from headrace.cache import Cache
from tests.program import Program

pytestmark = [pytest.mark.slow, pytest.mark.system]

TASKS = """
from headrace import Headrace

app = Headrace()

@app.on_preload
def warm() -> None:
    for _ in range(5):
        assert app.cache.get("rate") == 1

def _read() -> list:
    for _ in range(20):
        rate = app.cache.get("rate")
    seen = app.cache.statistics()
    return [rate, seen.hits > 0 and seen.healthy]

@app.task
def process() -> list:
    return _read()

@app.task(kind="thread")
def thread() -> list:
    return _read()

@app.task(kind="fork")
def fork() -> list:
    return [app.cache.get("rate"), app.cache.statistics().healthy]

@app.task
async def coroutine() -> list:
    for _ in range(20):
        rate = await app.cache.aget("rate")
    return [rate, app.cache.statistics().healthy]
"""


def test_runners_of_each_kind_read_the_truth(
    url: str, other: Cache, new_app: Callable[..., Headrace], tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    program = Program(tmp_path, url)
    program.write("tasks", TASKS)
    other.set("rate", 1)
    app, log = new_app(url), tmp_path / "log"
    counts = ("--processes", "1", "--threads", "2", "--concurrency", "2", "--forks", "1")
    with log.open("w") as out:
        worker = program.start("worker", "tasks:app", *counts, stdout=out, stderr=out)
    try:

        def read(kind: str) -> list[Any]:
            found: list[Any] = app.by_name(f"tasks.{kind}").enqueue().result(timeout=60)
            return found

        kinds = ("process", "thread", "coroutine", "fork")

        def reads(kind: str) -> bool:
            rate, healthy = read(kind)
            assert rate == 1, log.read_text()
            return bool(healthy)

        # A child of one job is too young for a connection of its own.
        assert not reads("fork")
        for kind in kinds[:-1]:
            # Its connection may take longer than its first reads.
            eventually(lambda kind=kind: reads(kind), 60)
        other.set("rate", 2)
        for kind in kinds:
            eventually(lambda kind=kind: read(kind)[0] == 2, 60)
        assert "started threads" not in log.read_text()
    finally:
        worker.terminate()
        worker.wait(60)
