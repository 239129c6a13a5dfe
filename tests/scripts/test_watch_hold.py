from __future__ import annotations

from headrace.protocol import operations
from headrace.protocol.operations import hold_watches, note_watch, stored_watches, told
from tests.scripts.stage import SECOND, Stage

LEASE = 30 * SECOND


def hold(stage: Stage, holder: str, *names: str, lease: int = LEASE) -> list[bool]:
    found = stage.run(hold_watches(stage.keys, holder, names, lease))
    assert found.now == stage.now
    return [fields is not None for fields in found.fields]


def test_one_watcher_holds_until_its_lease_is_over(stage: Stage) -> None:
    assert hold(stage, "w1", "hook:a", "alarm:b") == [True, True]
    assert hold(stage, "w2", "hook:a", "hook:c") == [False, True]
    stage.now += LEASE - 1
    assert hold(stage, "w2", "hook:a") == [False]
    stage.now += 1
    assert hold(stage, "w2", "hook:a", "hook:c") == [True, True]
    assert hold(stage, "w1", "hook:a", "alarm:b") == [False, True]


def test_a_clock_that_is_set_back_prolongs_the_lease_of_no_watcher_that_died(stage: Stage) -> None:
    assert hold(stage, "w1", "hook:a", "alarm:b") == [True, True]
    stage.now -= 3600 * SECOND
    # One that lives keeps what it holds.
    assert hold(stage, "w1", "hook:a") == [True]
    assert hold(stage, "w2", "hook:a", "alarm:b") == [False, True]


def test_a_watcher_keeps_what_it_holds_and_releases_it(stage: Stage) -> None:
    for _ in range(3):
        assert hold(stage, "w1", "hook:a") == [True]
        stage.now += LEASE - SECOND
    # One that holds nothing releases nothing, and takes nothing by it.
    assert hold(stage, "w2", "hook:a", "hook:b", lease=0) == [False, False]
    assert hold(stage, "w3", "hook:a") == [False]
    assert hold(stage, "w1", "hook:a", lease=0) == [True]
    assert hold(stage, "w3", "hook:a") == [True]


def test_a_new_hook_begins_with_what_happens_from_then_on_and_goes_on_from_there(stage: Stage) -> None:
    stage.run(operations.pause(stage.keys, "before"))
    newest = stage.run(told(stage.keys, "events", 0)).newest
    (fields,) = stage.run(hold_watches(stage.keys, "w1", ["hook:a"], LEASE)).fields
    assert fields is not None
    assert fields["at"] == newest
    stage.run(operations.pause(stage.keys, "after"))
    (again,) = stage.run(hold_watches(stage.keys, "w1", ["hook:a"], LEASE)).fields
    assert again is not None
    assert again["at"] == newest
    assert stage.run(note_watch(stage.keys, "hook:a", "w1", {"at": "5-0"}))
    stage.now += LEASE
    (later,) = stage.run(hold_watches(stage.keys, "w2", ["hook:a"], LEASE)).fields
    assert later is not None
    assert later["at"] == "5-0"


def test_without_events_a_hook_begins_with_the_first(stage: Stage) -> None:
    (fields, alarm) = stage.run(hold_watches(stage.keys, "w1", ["hook:a", "alarm:b"], LEASE)).fields
    assert fields is not None
    assert alarm is not None
    assert (fields["at"], "at" in alarm) == ("0-0", False)


def test_what_no_watcher_holds_ends_after_a_week(stage: Stage) -> None:
    hold(stage, "w1", "hook:old")
    assert 0 < stage.client.ttl(stage.keys("watch:hook:old")) <= 7 * 86400
    stage.now += 7 * 86400 * SECOND + 1
    hold(stage, "w1", "hook:new")
    assert [one.name for one in stage.run(stored_watches(stage.keys))] == ["hook:new"]
    assert 0 < stage.client.ttl(stage.keys("watches")) <= 7 * 86400
