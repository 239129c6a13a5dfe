from __future__ import annotations

from headrace.protocol.operations import read_stacks, tell_stacks
from tests.scripts.stage import Stage


def test_each_incarnation_has_its_own(stage: Stage) -> None:
    assert stage.run(read_stacks(stage.keys, "w1")) == b""
    stage.run(tell_stacks(stage.keys, "w1", "{}"))
    assert stage.run(read_stacks(stage.keys, "w1")) == b"{}"
    assert stage.run(read_stacks(stage.keys, "w2")) == b""
