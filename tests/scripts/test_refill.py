from __future__ import annotations

from headrace.protocol import ticks
from tests.schedules.bench_of_ticks import FIRST, MINUTE, fire, put, refill, row, schedule
from tests.scripts.stage import Stage


def test_of_two_dispatchers_that_reckon_one_counts(stage: Stage) -> None:
    put(stage)
    first = stage.run(ticks.fire(stage.keys))
    refill(stage, first)
    known = schedule(stage)
    refill(stage, first)
    assert schedule(stage) == known
    assert len(known.ticks) == 16


def test_ticks_of_a_definition_that_changed_meanwhile_are_left(stage: Stage) -> None:
    put(stage)
    asked = stage.run(ticks.fire(stage.keys))
    put(stage, row(fingerprint="f2"))
    refill(stage, asked)
    assert schedule(stage).ticks == []
    assert len(asked.wanting) == 1


def test_a_schedule_whose_dispatcher_died_is_asked_for_again(stage: Stage) -> None:
    put(stage)
    assert len(stage.run(ticks.fire(stage.keys)).wanting) == 1
    # It died, and nothing is refilled. No other one asks at once.
    again = stage.run(ticks.fire(stage.keys))
    assert again.wanting == []
    stage.now = again.due
    fire(stage)
    assert schedule(stage).ticks[0][0] == FIRST
    stage.now = FIRST + 3 * MINUTE
    assert fire(stage).ran == 1


def test_a_paused_or_deleted_schedule_is_not_refilled(stage: Stage) -> None:
    put(stage, row("a"), row("b"))
    asked = stage.run(ticks.fire(stage.keys))
    stage.run(ticks.pause_schedule(stage.keys, "a", ""))
    stage.run(ticks.delete_schedule(stage.keys, "b"))
    refill(stage, asked)
    assert (stage.members("ticking"), stage.client.exists(stage.keys("schedule:b"))) == ({}, 0)


def test_a_history_that_cannot_be_read_holds_up_no_others(stage: Stage) -> None:
    """The call was refused for ever, and while it waited no tick of any schedule was fired."""
    put(stage, row("a"), row("b"))
    fire(stage)
    stage.client.set(stage.keys("ticks:a"), "")
    stage.now = FIRST + 100 * MINUTE
    fire(stage)
    assert schedule(stage, "b").ticks[0][0] > stage.now
    stage.client.delete(stage.keys("ticks:a"))
