"""The stage on which each script is played."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.scripts.stage import Stage


@pytest.fixture
def stage(client: redis.Redis) -> Iterator[Stage]:
    stage = Stage(client)
    yield stage
    stage.close()
