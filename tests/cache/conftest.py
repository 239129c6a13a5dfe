"""Caches to test: over either protocol, several of them as if in several processes, closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import Headrace
from headrace.cache import Cache, step_driver, tracking_link

PROTOCOLS = {"resp3": (3,), "resp2": (2,)}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first reader waits for the link, and the link for its self-test, however busy the machine is."""
    monkeypatch.setattr(step_driver, "FIRST", 20.0)
    monkeypatch.setattr(tracking_link, "PROBE_TIMEOUT", 20.0)


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> tuple[int, ...]:
    return PROTOCOLS[request.param]


@pytest.fixture
def new_app() -> Iterator[Callable[..., Headrace]]:
    """``new_app(url, protocol, **settings)``: an application whose cache hears over that protocol."""
    made: list[Headrace] = []

    def make(url: str, protocol: Any = (3, 2), **settings: Any) -> Headrace:
        app = Headrace(url, **{"timeout": 20.0} | settings)
        app.__dict__["cache"] = Cache(app.client, protocols=protocol)
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


@pytest.fixture
def app(new_app: Callable[..., Headrace], url: str, protocol: Any) -> Headrace:
    return new_app(url, protocol)


@pytest.fixture
def cache(app: Headrace) -> Cache:
    return app.cache


@pytest.fixture
def other(new_app: Callable[..., Headrace], url: str) -> Cache:
    """Another program's cache."""
    return new_app(url).cache
