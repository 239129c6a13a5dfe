"""An application whose statistics flush only when told to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.app import Headrace


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url, stats_flush_interval=3600) as app:
        yield app
