"""The stage on which each script is played."""

from __future__ import annotations

import pytest
import redis

from tests.scripts.stage import Stage


@pytest.fixture
def stage(client: redis.Redis) -> Stage:
    return Stage(client)
