"""Waits and deadlines go on while a test has frozen the time of its code: freezegun replaces ``time.monotonic``."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
from freezegun import freeze_time

from headrace import Headrace
from headrace.errors import StoreUnavailable, WaitTimeout
from tests.servers import free_port

WHEN = "2026-01-01"


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    app = Headrace(url=url)

    @app.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    yield app
    app.close()


def test_a_result_is_waited_for_no_longer_than_asked(app: Headrace) -> None:
    with freeze_time(WHEN):
        job = app.tasks["double"].enqueue(2)
        with pytest.raises(WaitTimeout):
            job.result(timeout=0.1)


async def test_a_coroutine_waits_no_longer_than_asked(app: Headrace) -> None:
    with freeze_time(WHEN, real_asyncio=True):  # without it, no time-out of asyncio ends
        job = await app.tasks["double"].aenqueue(2)
        with pytest.raises(WaitTimeout):
            await job.aresult(timeout=0.1)
    await app.aclose()


def test_a_call_gives_up_while_the_server_is_away() -> None:
    app = Headrace(url=f"redis://127.0.0.1:{free_port()}", timeout=0.1)
    with freeze_time(WHEN), pytest.raises(StoreUnavailable):
        _ = app.queues["default"].size
    app.close()


def test_a_program_that_imports_headrace_under_a_frozen_clock_waits_in_time(url: str) -> None:
    program = f"""
        from freezegun import freeze_time
        with freeze_time("{WHEN}"):
            from headrace import Headrace
            from headrace.errors import WaitTimeout
            app = Headrace(url="{url}")
            @app.task(name="double")
            def double(number: int) -> int: ...
            try:
                double.enqueue(2).result(timeout=0.1)
            except WaitTimeout:
                print("in time")
        app.close()
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout == "in time\n"
