from __future__ import annotations

from headrace.protocol import cache_calls
from tests.scripts.stage import Stage


def test_a_value_is_read_as_it_was_stored(stage: Stage) -> None:
    every = bytes(range(256))
    stage.run(cache_calls.store(stage.keys, "a", every, 60))
    assert stage.run(cache_calls.read(stage.keys, "a")) == b"\n" + every


def test_what_is_absent_or_alien_is_none(stage: Stage) -> None:
    stage.client.rpush(stage.keys.cache("alien"), "x")
    assert stage.run(cache_calls.read(stage.keys, "absent")) is None
    assert stage.run(cache_calls.read(stage.keys, "alien")) is None
    stage.client.delete(stage.keys.cache("alien"))
