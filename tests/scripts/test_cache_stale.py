"""The included script ``cache_stale``: which deletions by tag a lease is too old for."""

from __future__ import annotations

import pytest

from headrace.protocol import cache_calls
from tests.scripts.stage import Stage


@pytest.mark.parametrize(
    ("dropped", "stored"), [("x", False), ("w", False), (cache_calls.ALL, False), ("y", True), ("", True)]
)
def test_a_lease_is_as_good_as_no_tag_of_the_value_was_dropped_since(stage: Stage, dropped: str, stored: bool) -> None:
    stage.run(cache_calls.drop(stage.keys, "w", True))
    lease = stage.run(cache_calls.lease(stage.keys, "a", ("w", "x"))).lease
    if dropped:
        stage.run(cache_calls.drop(stage.keys, dropped, True))
    assert stage.run(cache_calls.store(stage.keys, "a", b"\xc0", 60, ("w", "x"), lease)) is stored
    stage.run(cache_calls.drop(stage.keys, cache_calls.ALL, True))
