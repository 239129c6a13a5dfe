"""pytest's side of the kit: fixtures, an ini option, a marker.

Imports nothing of Headrace until a fixture is asked for: every run of pytest imports this.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.testing.kit import Kit
    from headrace.testing.kit_store import PrivateServer


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("headrace_app", "the application that the fixture headrace_app takes over, such as shop.tasks:app")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "headrace(app=None, mode='manual', url=None): how the fixture headrace_app is made for this test"
    )


@pytest.fixture(scope="session")
def headrace_server() -> Iterator[PrivateServer]:
    """The private server of this process's tests, one for each worker of pytest-xdist."""
    from headrace.testing.kit_store import private_server

    server = private_server()
    yield server
    server.close()


@pytest.fixture
def headrace_target(request: pytest.FixtureRequest) -> Headrace:
    """The application that ``headrace_app`` takes over; override it to name the application in code."""
    target: Any = _asked(request).get("app") or request.config.getini("headrace_app")
    if not target:
        raise pytest.UsageError(
            "headrace_app does not know your application: set headrace_app = shop.tasks:app in pytest's settings, mark "
            'the test with @pytest.mark.headrace(app="shop.tasks:app"), or define a fixture headrace_target that '
            "returns it"
        )
    if not isinstance(target, str):
        return target  # type: ignore[no-any-return]
    from headrace.loader import load

    return load(target)


@pytest.fixture
def headrace_app(request: pytest.FixtureRequest, headrace_target: Headrace) -> Iterator[Kit]:
    """Your application on a private server during one test; see :class:`headrace.testing.Kit`."""
    from headrace.testing.kit import Kit

    asked = _asked(request)
    url = asked.get("url") or request.getfixturevalue("headrace_server").url
    with Kit(headrace_target, url=url, mode=asked.get("mode", "manual")) as kit:
        yield kit


def _asked(request: pytest.FixtureRequest) -> dict[str, Any]:
    node: Any = request.node
    found: dict[str, Any] = {}
    for mark in reversed(list(node.iter_markers("headrace"))):
        found |= mark.kwargs
    return found
