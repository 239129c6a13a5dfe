from __future__ import annotations

from headrace.protocol.operations import AlarmNote, note_alarms, stored_watches, told
from tests.scripts.stage import Stage


def note(stage: Stage, was: int, raised: int, *, change: bool = True) -> None:
    kind = ("alarm_raised" if raised else "alarm_cleared") if change else ""
    row = AlarmNote("alarm:a", was, {"raised": raised, "value": "7"}, kind, {"alarm": "a"} if change else {})
    stage.run(note_alarms(stage.keys, [row]))


def kinds(stage: Stage) -> list[str]:
    return [fields["kind"] for _, fields in stage.run(told(stage.keys, "events", 100, desc=False)).rows]


def test_a_change_is_told_once_however_often_it_is_recorded(stage: Stage) -> None:
    note(stage, 0, 0, change=False)
    for _ in range(2):
        note(stage, 0, 5)
    for _ in range(2):
        note(stage, 5, 0)
    assert kinds(stage) == ["alarm_raised", "alarm_cleared"]


def test_a_look_that_began_before_another_ones_change_changes_nothing(stage: Stage) -> None:
    note(stage, 0, 5)
    note(stage, 0, 0, change=False)
    assert stage.client.hget(stage.keys("watch:alarm:a"), "raised") == b"5"


def test_it_is_kept_for_a_week(stage: Stage) -> None:
    note(stage, 0, 0, change=False)
    (one,) = stage.run(stored_watches(stage.keys))
    assert (one.name, one.held_us, one.fields["value"]) == ("alarm:a", stage.now, "7")
    for key in ("watches", "watch:alarm:a"):
        assert 0 < stage.client.ttl(stage.keys(key)) <= 7 * 86400
