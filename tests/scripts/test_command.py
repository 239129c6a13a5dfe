from __future__ import annotations

from headrace.protocol.operations import command
from tests.scripts.stage import SECOND, Stage


def test_only_a_live_incarnation_that_listens_is_told(stage: Stage) -> None:
    assert stage.run(command(stage.keys, "w1", "scale:process:2")) == "gone"
    stage.register("w1", 15 * SECOND)
    assert stage.run(command(stage.keys, "w1", "scale:process:2")) == "silent"
    ear = stage.subscribe(stage.keys.mail("w1"))
    assert stage.run(command(stage.keys, "w1", "scale:process:2")) == "told"
    assert ear.get_message(timeout=20)["data"] == b"scale:process:2"
    stage.now += 15 * SECOND
    assert stage.run(command(stage.keys, "w1", "scale:process:2")) == "gone"
    assert ear.get_message(timeout=0) is None
    ear.close()
