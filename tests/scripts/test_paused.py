from __future__ import annotations

from headrace.protocol.operations import pause, paused, resume
from tests.scripts.stage import Stage


def test_paused_queues_are_named(stage: Stage) -> None:
    assert stage.run(paused(stage.keys)) == []
    for queue in ("b", "a"):
        stage.run(pause(stage.keys, queue))
    assert stage.run(paused(stage.keys)) == ["a", "b"]
    stage.run(resume(stage.keys, "b"))
    assert stage.run(paused(stage.keys)) == ["a"]
