"""Pools that end with their test, and the fork server with the session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import pytest

from headrace import Pool
from headrace.pool import Call
from tests.deadline import eventually
from tests.pool import chores


@pytest.fixture(scope="session", autouse=True)
def no_fork_server_left() -> Iterator[None]:
    yield
    # They live as long as this process, and the session's end looks for what was left running.
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


@pytest.fixture
def make() -> Iterator[Callable[..., Pool]]:
    """Pools of this test; whatever it left is ended by force."""
    with ExitStack() as pools:

        def start(n: int, **options: Any) -> Pool:
            pool = Pool(n, **options)
            pools.callback(pool.stop, 0)
            return pool

        yield start


@pytest.fixture(params=["thread", "process"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Blocks:
    """Calls that hold members until they are released."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._number = 0

    def hold(self, pool: Pool, **options: Any) -> tuple[Call[str], Path]:
        """Start such a call and wait until it runs; touching the path releases it."""
        call, started, release = self.ask(pool, **options)
        eventually(started.exists, what="a blocking call runs")
        return call, release

    def ask(self, pool: Pool, **options: Any) -> tuple[Call[str], Path, Path]:
        """Submit such a call."""
        self._number += 1
        started, release = (self._directory / f"{word}-{self._number}" for word in ("started", "release"))
        return pool.submit(chores.block, started, release, **options), started, release


@pytest.fixture
def blocks(tmp_path: Path) -> Blocks:
    return Blocks(tmp_path)


@pytest.fixture
def up() -> Callable[[Pool], Pool]:
    """Wait until all members of a pool are there."""

    def wait(pool: Pool) -> Pool:
        eventually(lambda: all(m.state != "away" for m in pool.stats().members), 20, what="all members are up")
        return pool

    return wait
