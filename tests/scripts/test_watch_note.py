from __future__ import annotations

from typing import Any

from headrace.protocol.operations import hold_watches, note_watch, told
from tests.scripts.stage import SECOND, Stage


def note(stage: Stage, holder: str, raised: int, **given: Any) -> bool:
    kind = "alarm_raised" if raised else "alarm_cleared"
    return stage.run(
        note_watch(stage.keys, "alarm:a", holder, {"raised": raised, "value": "7"}, kind=kind,
                   facts={"alarm": "a", "value": "7"}, **given)
    )  # fmt: skip


def kinds(stage: Stage) -> list[str]:
    return [fields["kind"] for _, fields in stage.run(told(stage.keys, "events", 100, desc=False)).rows]


def test_only_the_holder_records_and_tells(stage: Stage) -> None:
    assert not note(stage, "w1", 5, change="raised")
    assert stage.client.exists(stage.keys("watch:alarm:a")) == 0
    stage.run(hold_watches(stage.keys, "w1", ["alarm:a"], SECOND))
    assert not note(stage, "w2", 5, change="raised")
    assert kinds(stage) == []
    assert note(stage, "w1", 5, change="raised")
    assert stage.client.hget(stage.keys("watch:alarm:a"), "raised") == b"5"
    assert kinds(stage) == ["alarm_raised"]


def test_a_change_is_told_once_however_often_it_is_recorded(stage: Stage) -> None:
    stage.run(hold_watches(stage.keys, "w1", ["alarm:a"], SECOND))
    assert note(stage, "w1", 0, change="raised")
    assert kinds(stage) == []
    for _ in range(2):
        assert note(stage, "w1", 5, change="raised")
    for _ in range(2):
        assert note(stage, "w1", 0, change="raised")
    assert kinds(stage) == ["alarm_raised", "alarm_cleared"]


def test_what_is_no_change_is_recorded_only(stage: Stage) -> None:
    stage.run(hold_watches(stage.keys, "w1", ["alarm:a"], SECOND))
    assert note(stage, "w1", 5)
    assert kinds(stage) == []
    assert stage.client.hget(stage.keys("watch:alarm:a"), "value") == b"7"
