"""What the fault suite asks for: a fleet of workers on the shared server, or on one of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers import Server
from tests.system.fleet import LONG_LEASE, Fleet
from tests.system.tap import Tap


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
def new_fleet(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
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
