"""Caches to test: several of them as if in several processes, closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import Headrace
from headrace.cache import Cache, listener, values


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first reader waits for the link, and the link for its self-test, however busy the machine is."""
    monkeypatch.setattr(values, "FIRST", 20.0)
    monkeypatch.setattr(listener, "PROBE_TIMEOUT", 20.0)


@pytest.fixture
def new_app() -> Iterator[Callable[..., Headrace]]:
    """``new_app(url, **settings)``: an application."""
    made: list[Headrace] = []

    def make(url: str, **settings: Any) -> Headrace:
        app = Headrace(url, **{"timeout": 20.0} | settings)
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


@pytest.fixture
def app(new_app: Callable[..., Headrace], url: str) -> Headrace:
    return new_app(url)


@pytest.fixture
def cache(app: Headrace) -> Cache:
    return app.cache


@pytest.fixture
def other(new_app: Callable[..., Headrace], url: str) -> Cache:
    """Another program's cache."""
    return new_app(url).cache
