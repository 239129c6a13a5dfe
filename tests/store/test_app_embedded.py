"""An application without a URL uses the private server of its directory; one that needs none starts none."""

from __future__ import annotations

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
