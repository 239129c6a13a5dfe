from __future__ import annotations

from headrace.protocol.operations import AlarmNote, due_calls, note_alarms, stored_watches
from tests.scripts.stage import SECOND, Stage


def test_the_last_ones_come_first_with_what_is_known_of_them(stage: Stage) -> None:
    assert stage.run(stored_watches(stage.keys)) == []
    stage.run(due_calls(stage.keys, [("hook:a", SECOND, [])], 9))
    first = stage.now
    stage.now += SECOND
    stage.run(note_alarms(stage.keys, [AlarmNote("alarm:b", 0, {"raised": 5}, "", {})]))
    found = stage.run(stored_watches(stage.keys))
    assert [(one.name, one.held_us) for one in found] == [("alarm:b", stage.now), ("hook:a", first)]
    assert found[0].fields["raised"] == "5"
    assert len(stage.run(stored_watches(stage.keys, 1))) == 1
