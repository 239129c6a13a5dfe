"""An application whose statistics go to the shared server, with a clock that only the test moves where it wants one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.app import Headrace
from headrace.settings import load
from headrace.stats import Stats
from headrace.store.client import Client


class Clock:
    """Seconds since 1970, as the test says."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url, stats_flush_interval=3600) as app:
        yield app


@pytest.fixture
def make_stats(url: str) -> Iterator[Callable[..., Stats]]:
    """``make_stats(clock=..., stats_keep=...)``: statistics with these settings; they flush only when told to."""
    made: list[tuple[Stats, Client]] = []

    def make(*, clock: Callable[[], float] | None = None, at: str = url, **settings: Any) -> Stats:
        chosen = load(os.environ, **{"stats_flush_interval": 3600, "url": at} | settings)
        client = Client(chosen)
        stats = Stats(client, chosen, **({"clock": clock} if clock else {}))
        made.append((stats, client))
        return stats

    yield make
    for stats, client in made:
        stats.close()
        client.close()
