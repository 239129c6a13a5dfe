"""An application without a URL uses the private server of its directory; one that needs none starts none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headrace import Headrace, State


def plain(x: int = 1) -> int:
    return x


def test_without_a_url_the_directory_has_a_server(tmp_path: Path) -> None:
    with (
        Headrace(dir=str(tmp_path / "d"), embedded_idle_timeout=0) as app,
        Headrace(dir=str(tmp_path / "d"), embedded_idle_timeout=0) as other,
    ):
        job = app.task(name="plain")(plain).enqueue(3)
        assert other.jobs.get(job.id).state is State.READY


async def test_the_same_from_async_code(tmp_path: Path) -> None:
    async with Headrace(dir=str(tmp_path / "d"), embedded_idle_timeout=0) as app:
        job = await app.task(name="plain")(plain).aenqueue(3)
        assert await job.astate() is State.READY


def test_a_task_that_runs_in_place_starts_no_server(tmp_path: Path) -> None:
    app = Headrace(dir=str(tmp_path / "d"))
    assert app.task(name="plain")(plain)(3) == 3
    app.close()
    assert not (tmp_path / "d").exists()


AT_EXIT = """
import asyncio, atexit, sys
from headrace import Headrace

app = Headrace(dir=sys.argv[1], embedded_idle_timeout=0)

async def last() -> None:
    print(await app.cache.aget("a", "none"))
    app.stats.add("a", {"count": 1})
    await app.stats.aflush()
    await app.aclose()
    print("closed")

atexit.register(lambda: asyncio.run(last()))
"""


def test_coroutines_of_an_exit_hook_need_no_thread(tmp_path: Path) -> None:
    """Python gives none there: a first use of the private server, a flush and ``aclose`` raised RuntimeError."""
    words = [sys.executable, "-c", AT_EXIT, str(tmp_path / "d")]
    ended = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("none\nclosed\n", "")
