"""An application without a URL uses the private server of its directory; one that needs none starts none."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import Headrace, State
from headrace.errors import SettingsError


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


def test_a_program_without_a_url_says_so_and_may_be_forbidden_a_private_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In two containers producer and worker each had a server of their own, and never met."""
    (tmp_path / ".headrace").mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_URL", raising=False)
    caplog.set_level(logging.INFO, "headrace.store")
    for level, says in ((logging.INFO, "its project"), (logging.WARNING, "REDIS_URL is set, but Headrace reads HEAD")):
        with Headrace(embedded_idle_timeout=0) as app:
            assert not caplog.records, "an import says nothing"
            app.overview()
            app.astore  # noqa: B018
        ((name, found, text),) = caplog.record_tuples
        assert (name, found) == ("headrace.store", level)
        assert says in text
        caplog.clear()
        monkeypatch.setenv("REDIS_URL", "redis://elsewhere")
    monkeypatch.setenv("HEADRACE_EMBEDDED", "no")
    with Headrace() as app, pytest.raises(SettingsError, match=r"HEADRACE_URL: it names no server.*; REDIS_URL is set"):
        app.overview()
    for words in (["jobs", "list"], ["enqueue", "t"]):
        ended = subprocess.run(
            [sys.executable, "-m", "headrace", *words], check=False, capture_output=True, text=True, timeout=60
        )
        assert ended.returncode == 2
        assert "embedded=no forbids a private one" in ended.stderr
