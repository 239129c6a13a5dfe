from __future__ import annotations

from headrace.protocol import cache_calls
from tests.scripts.stage import Stage


def test_nothing_is_left(stage: Stage) -> None:
    stage.client.set(stage.keys("probe:link"), "of an earlier one")
    assert stage.run(cache_calls.probe(stage.keys, "link"))
    assert stage.client.keys("*") == []
