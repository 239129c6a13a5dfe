"""The tests of the kit use it as its users do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Headrace
from headrace.testing import Kit
from headrace.testing.kit_store import PrivateServer
from tests.kit import shop
from tests.servers import connect


@pytest.fixture(scope="session", autouse=True)
def one_server(nothing_left_running: None, headrace_server: PrivateServer) -> None:
    """End the server before it is looked whether anything was left, also where a test makes its kit itself."""


@pytest.fixture(autouse=True)
def one_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kit's store has one shard, whatever its application has; programs of a test that go there must know."""
    monkeypatch.delenv("HEADRACE_SHARDS", raising=False)


@pytest.fixture
def headrace_target() -> Headrace:
    shop.said.clear()
    shop.around.clear()
    return shop.app


@pytest.fixture
def client(kit: Kit) -> Iterator[Any]:
    """A plain client of the server that a test's own kit uses."""
    client: Any
    with connect(kit.url) as client:
        yield client


REPEATS = "HR_KIT_REPEATS"
"""Each test here runs so often, among the others in random order: HR_KIT_REPEATS=1000 looks for flakes."""


@pytest.fixture(autouse=True)
def repeat(request: pytest.FixtureRequest) -> None:
    """Parametrized where tests are to run more than once."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if times := int(os.environ.get(REPEATS, "0")):
        metafunc.parametrize("repeat", range(times), indirect=True)
