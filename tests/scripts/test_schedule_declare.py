from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from headrace.protocol import consume, ticks
from headrace.schedules.timetables import Timing
from tests.schedules.bench_of_ticks import FIRST, MINUTE, fire, put, row, schedule, told
from tests.scripts.stage import SECOND, Stage


def test_what_is_declared_again_stays_as_it_is(stage: Stage) -> None:
    stage.register()
    assert put(stage, owner="w1") == ["created"]
    fire(stage)
    before = schedule(stage)
    stage.now += 10 * SECOND
    stage.register("w2")
    assert put(stage, owner="w2") == ["same"]
    assert schedule(stage) == before
    assert stage.members("ticking") == {"s": FIRST}


def test_a_change_brings_new_ticks_and_keeps_pause_counts_and_history(stage: Stage) -> None:
    stage.register()
    put(stage, owner="w1")
    fire(stage)
    stage.now = FIRST
    fire(stage)
    changed = row(fingerprint="f2", timing=Timing(step=30 * SECOND))
    assert put(stage, changed, owner="w1") == ["changed"]
    stage.now += SECOND
    fire(stage)
    assert schedule(stage).ticks[0][0] == FIRST + 30 * SECOND
    assert told(stage) == [(0, "ran", 1)]
    stage.run(ticks.pause_schedule(stage.keys, "s", "why"))
    assert put(stage, row(fingerprint="f3"), owner="w1") == ["changed"]
    assert schedule(stage).paused == "why"
    stage.now += MINUTE
    assert fire(stage).ran == 0
    assert (schedule(stage).runs, stage.members("ticking")) == (1, {})


def test_old_code_does_not_come_back_beside_new_code(stage: Stage) -> None:
    for owner in ("old", "new", "older"):
        stage.register(owner)
    assert put(stage, row(fingerprint="f1"), owner="old") == ["created"]
    assert put(stage, row(fingerprint="f2"), owner="new") == ["changed"]
    # A worker with the old code starts during the deploy.
    assert put(stage, row(fingerprint="f1"), owner="older") == ["superseded"]
    assert put(stage, row(fingerprint="f2"), owner="new") == ["same"]
    # It was rolled back: no live worker has the new code.
    stage.run(consume.retire(stage.keys, "new"))
    assert put(stage, row(fingerprint="f1"), owner="older") == ["changed"]
    # And rolled out once more.
    stage.register("newest")
    assert put(stage, row(fingerprint="f2"), owner="newest") == ["superseded"]
    for owner in ("old", "older"):
        stage.run(consume.retire(stage.keys, owner))
    assert put(stage, row(fingerprint="f2"), owner="newest") == ["changed"]


def test_a_server_that_was_away_brings_no_old_code_back(stage: Stage) -> None:
    """All leases are over, and each worker may come back."""
    for owner, fingerprint in (("old", "f1"), ("new", "f2")):
        stage.register(owner, 15 * SECOND)
        put(stage, row(fingerprint=fingerprint), owner=owner)
    stage.now += 16 * SECOND
    assert put(stage, row(fingerprint="f1"), owner="old") == ["superseded"]
    assert stage.run(consume.reclaim(stage.keys, "new", True, 10, 0)) == ("done", 0)
    assert put(stage, row(fingerprint="f1"), owner="old") == ["changed"]


def test_a_worker_that_is_gone_declares_nothing(stage: Stage) -> None:
    """A call that the server gets late, after the worker has retired, would leave a key that nothing ends."""
    stage.register()
    assert put(stage, owner="w1") == ["created"]
    stage.run(consume.retire(stage.keys, "w1"))
    before = stage.everything()
    assert put(stage, row(fingerprint="f2"), row("b"), owner="w1") == ["gone", "gone"]
    assert stage.everything() == before


def test_code_and_run_time_do_not_take_each_others_names(stage: Stage) -> None:
    stage.register()
    assert put(stage, row("a"), row("b"), owner="w1") == ["created", "created"]
    assert put(stage, row("a", "f9"), row("c"), owner="") == ["taken", "created"]
    assert put(stage, row("c", "f9"), owner="w1") == ["taken"]
    assert [one.source for one in stage.run(ticks.read_schedules(stage.keys)).rows] == ["code", "code", "stored"]


def test_a_record_that_cannot_be_read_holds_up_no_others(stage: Stage) -> None:
    """The call was refused for ever, so the worker declared no schedule, and fired none."""
    stage.register()
    stage.client.set(stage.keys("schedule:a"), "")
    assert put(stage, row("a"), row("b"), owner="w1") == ["unreadable", "created"]
    with pytest.raises(ResponseError):
        put(stage, row("a"))
    stage.client.delete(stage.keys("schedule:a"))
    assert put(stage, row("a"), row("b"), owner="w1") == ["created", "same"]


def test_dispatchers_hear_of_what_came(stage: Stage) -> None:
    stage.register()
    heard = stage.subscribe(stage.keys.mail("w1"))
    put(stage)
    assert heard.get_message(timeout=20)["data"] == b"renew"
    put(stage)
    assert heard.get_message(timeout=0.0) is None


def test_an_ended_schedule_that_is_put_again_begins_anew(stage: Stage) -> None:
    put(stage, row(left=1))
    fire(stage)
    stage.now = FIRST
    fire(stage)
    assert schedule(stage).state == "ended"
    assert put(stage, row(left=1)) == ["changed"]
    stage.now += MINUTE
    fire(stage)
    stage.now += MINUTE
    fire(stage)
    assert (schedule(stage).state, schedule(stage).runs) == ("ended", 2)


def test_workers_whose_schedules_were_replaced_hear_of_it_until_they_declare_them_again(stage: Stage) -> None:
    """A schedule of a canary stayed in force after that had left."""

    def replaced(owner: str) -> tuple[str, ...]:
        return stage.run(consume.renew(stage.keys, owner, 15 * SECOND)).replaced

    for owner in ("old", "canary"):
        stage.register(owner)
    assert put(stage, row(fingerprint="f1"), owner="old") == ["created"]
    assert replaced("canary") == ()
    assert put(stage, row(fingerprint="f2"), owner="canary") == ["changed"]
    assert (replaced("canary"), replaced("old")) == ((), ("schedules",))
    assert put(stage, row(fingerprint="f1"), owner="old") == ["superseded"]
    assert replaced("old") == ()
    # One that claims no more keeps none in force.
    stage.run(consume.renew(stage.keys, "canary", 15 * SECOND, ["draining", 1]))
    assert put(stage, row(fingerprint="f1"), owner="old") == ["changed"]
    assert replaced("canary") == ()
