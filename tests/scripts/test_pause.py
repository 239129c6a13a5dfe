from __future__ import annotations

from headrace.protocol.admin import pause
from tests.scripts.stage import Stage


def test_a_pause_holds_until_it_is_lifted(stage: Stage) -> None:
    claim = stage.running()
    assert stage.run(pause(stage.keys, "default"))
    assert not stage.run(pause(stage.keys, "default"))
    assert stage.names("paused") == {"default"}
    stage.put()
    assert stage.take() == []
    stage.end(claim, "released")
    assert stage.take() == []
    assert len(stage.ready()) == 2
