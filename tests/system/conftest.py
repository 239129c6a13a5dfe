"""Workers as people start them, and the fleets of the fault suite, on the shared server or on one of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Headrace
from tests.commands import Commands
from tests.program import Worker
from tests.servers import Server
from tests.system.fleet import LONG_LEASE, Fleet, NewFleet
from tests.system.rolled import Rolled
from tests.system.tap import Tap


@pytest.fixture
def headrace(tmp_path: Path, url: str) -> Commands:
    """The program in a directory of its own, on the shared server."""
    return Commands(tmp_path, url)


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    """A producer on the shared server that knows no task."""
    with Headrace(url) as app:
        yield app


@pytest.fixture
def worker(headrace: Commands) -> Iterator[Callable[..., Worker]]:
    """``worker(*arguments)`` starts ``headrace worker tasks:app`` with one process; it is closed with the test.

    ``text`` becomes the module of tasks, ``own`` makes it an interpreter of its own.
    """
    started: list[Worker] = []

    def start(*arguments: str, target: str = "tasks:app", text: str = "", own: bool = False) -> Worker:
        if text:
            headrace.write("tasks", text)
        headrace.own = own
        started.append(Worker(headrace.start("worker", target, "--processes", "1", *arguments)))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def rolled(tmp_path: Path, url: str) -> Iterator[Rolled]:
    rolled = Rolled(tmp_path, url)
    yield rolled
    rolled.end()


@pytest.fixture
def lease() -> float:
    """That of the fleet's workers; override it with ``LEASE`` where a test waits for its end."""
    return LONG_LEASE


@pytest.fixture
def fleet(server: Server, tmp_path: Path, lease: float) -> Iterator[Fleet]:
    """Workers on the shared server; ended, and the invariants checked, when the test is over."""
    fleet = Fleet(server.url, tmp_path, lease=lease)
    yield fleet
    fleet.end()
    assert fleet.ledger.tokens_grow()


@pytest.fixture
def tap(server: Server, tmp_path: Path, fleet: Fleet) -> Iterator[Tap]:
    """A tap between workers of the fleet and the shared server.

    They use it when they are given its ``url``.
    """
    tap = Tap(server.socket, tmp_path)
    yield tap
    # The workers first: a connection that closes under them would be one fault more than the test wants.
    fleet.end()
    tap.close()


@pytest.fixture
def new_fleet(tmp_path: Path) -> Iterator[NewFleet]:
    """``new_fleet(url, **settings)``: workers on a server that the test made, or with other settings."""
    made: list[Fleet] = []

    def make(url: str, **settings: Any) -> Fleet:
        directory = tmp_path / f"fleet-{len(made)}"
        directory.mkdir()
        made.append(Fleet(url, directory, **settings))
        return made[-1]

    yield make
    for fleet in made:
        fleet.end()
    # Only then: a failure here must leave no worker behind.
    for fleet in made:
        assert fleet.forgetful or fleet.ledger.tokens_grow()
