from __future__ import annotations

from headrace.protocol.operations import tell_stacks
from tests.scripts.stage import Stage


def test_what_is_told_stays_for_a_minute(stage: Stage) -> None:
    assert stage.run(tell_stacks(stage.keys, "w1", "{}")) == b"ok"
    assert stage.run(tell_stacks(stage.keys, "w1", '{"a": 1}')) == b"ok"
    assert stage.client.get(stage.keys("stacks:w1")) == b'{"a": 1}'
    assert 0 < stage.client.ttl(stage.keys("stacks:w1")) <= 60
