from __future__ import annotations

import pytest

from headrace.protocol import consume, ticks
from headrace.worker.dispatcher.declared_duties import TickDuty
from tests.schedules.bench_of_ticks import FIRST, MINUTE, fire, put, row, schedule, told
from tests.scripts.stage import SECOND, Stage

DAY = 1440 * MINUTE


def walk(stage: Stage, after: str = "", limit: int = 500) -> ticks.Walked:
    return stage.run(ticks.walk_schedules(stage.keys, after, limit))


def renew(stage: Stage, owner: str) -> None:
    assert stage.run(consume.renew(stage.keys, owner, 30 * DAY)).alive


def test_what_no_live_worker_declares_is_orphaned_then_deleted(stage: Stage) -> None:
    stage.register("w1", 30 * DAY)
    stage.register("other", 30 * DAY)
    put(stage, row("a"), row("b"), owner="w1")
    put(stage, row("c"))
    fire(stage)
    walk(stage)
    stage.run(consume.retire(stage.keys, "w1"))
    # A new worker still declares one of them.
    stage.register("w2", 30 * DAY)
    put(stage, row("b"), owner="w2")
    walk(stage)
    stage.now += 10 * MINUTE - 1
    walk(stage)
    assert schedule(stage, "a").state == "active"
    stage.now += 1
    walk(stage)
    assert [schedule(stage, name).state for name in "abc"] == ["orphaned", "active", "active"]
    assert stage.members("ticking")["a"] == stage.now + 7 * DAY
    # Its code comes back: it ticks from now on.
    stage.register("w3", 30 * DAY)
    put(stage, row("a"), owner="w3")
    fire(stage)
    assert schedule(stage, "a").state == "active"
    assert schedule(stage, "a").ticks[0][0] > stage.now
    stage.run(consume.retire(stage.keys, "w3"))
    for away in (0, 10 * MINUTE, 7 * DAY):
        stage.now += away
        walk(stage)
    assert [one.name for one in stage.run(ticks.read_schedules(stage.keys)).rows] == ["b", "c"]


def orphan(stage: Stage, owner: str) -> None:
    """The last worker that declares it leaves, and nobody comes for ten minutes."""
    stage.run(consume.retire(stage.keys, owner))
    for away in (0, 10 * MINUTE):
        stage.now += away
        walk(stage)


def test_an_orphaned_schedule_that_comes_back_makes_no_more_jobs_than_it_may(stage: Stage) -> None:
    stage.register("other", 30 * DAY)
    for n in range(4):
        stage.register(f"w{n}", 30 * DAY)
        put(stage, row(left=2), owner=f"w{n}")
        fire(stage)
        if schedule(stage).ticks:
            stage.now = schedule(stage).ticks[0][1]
            fire(stage)
        assert (schedule(stage).runs, schedule(stage).state) == ((1, "active") if n == 0 else (2, "ended"))
        assert not schedule(stage).orphaned
        orphan(stage, f"w{n}")
        assert schedule(stage).orphaned


@pytest.mark.parametrize("ended", [False, True])
def test_workers_without_schedules_delete_the_last_one(stage: Stage, ended: bool) -> None:
    """They knew of no tick, so they did not walk: an orphaned schedule was listed for ever after the next deploy."""
    stage.register("old", 60 * DAY)
    put(stage, row(left=1), owner="old")
    fire(stage)
    if ended:
        stage.now = FIRST
        fire(stage)
        stage.now += 8 * DAY
        fire(stage)
    stage.register("new", 60 * DAY)
    stage.run(consume.retire(stage.keys, "old"))
    for away in (20 * MINUTE, 20 * MINUTE, 8 * DAY):
        stage.now += away
        fire(stage)
        duty = TickDuty(stage.keys, (), lambda *_: None)
        duty.begin("new", 0.0)
        renewed = stage.run(consume.renew(stage.keys, "new", 60 * DAY, ticks=True))
        duty.learn(0.0, renewed.now, renewed.tick)
        for call, _ in duty.steps(0.0):
            stage.run(call)
    assert stage.run(ticks.read_schedules(stage.keys)).count == 0
    assert stage.members("ticking") == {}


def test_a_paused_schedule_that_is_declared_stays_paused(stage: Stage) -> None:
    stage.register("w1", 30 * DAY)
    put(stage, owner="w1")
    stage.run(ticks.pause_schedule(stage.keys, "s", ""))
    walk(stage)
    assert (schedule(stage).state, stage.members("ticking")) == ("paused", {})


def test_a_clock_that_was_set_back_is_noticed(stage: Stage) -> None:
    put(stage)
    fire(stage)
    stage.now = FIRST + 2 * DAY
    fire(stage)
    walk(stage)
    # Less than an hour: the ticks that are known stay, and none runs twice.
    stage.now -= 50 * MINUTE
    assert walk(stage).rewound == []
    assert fire(stage).ran == 0
    stage.now = FIRST
    assert walk(stage).rewound == ["s"]
    fire(stage)
    assert schedule(stage).ticks[0][0] == FIRST + MINUTE
    stage.now += MINUTE
    assert fire(stage).ran == 1


def test_a_tick_that_ran_does_not_run_again_when_the_clock_was_set_back(stage: Stage) -> None:
    """Its job is not stored any more, so that only the history tells that it ran."""
    stage.register("w1", DAY)
    put(stage)
    fire(stage)
    for n in range(90):
        stage.now = FIRST + n * MINUTE
        assert fire(stage).ran == 1
        (claim,) = stage.take()
        stage.end(claim, amount=0)
        walk(stage)
    stage.now = FIRST + 20 * MINUTE + SECOND
    assert walk(stage).rewound == ["s"]
    for n in range(21, 93):
        stage.now = FIRST + n * MINUTE
        assert fire(stage).ran == (1 if n >= 90 else 0), n
    seconds = [at for at, what, _ in told(stage) if what == "ran"]
    assert len(seconds) == len(set(seconds))


def test_a_clock_that_was_far_ahead_for_a_moment_keeps_no_schedule_silent(stage: Stage) -> None:
    """Between two walks: only what was fired meanwhile tells of it."""
    put(stage)
    fire(stage)
    walk(stage)
    stage.now = FIRST + 2 * DAY
    assert fire(stage).ran == 1
    stage.now = FIRST + MINUTE
    assert walk(stage).rewound == ["s"]
    stage.now += MINUTE
    assert fire(stage).ran == 1
    assert told(stage)[-1] == (120, "ran", 1)


def test_a_clock_that_is_set_back_twice_has_no_tick_run_twice(stage: Stage) -> None:
    stage.register("w1", DAY)
    put(stage)
    fire(stage)
    for begin, ran in ((0, 90), (15, 0), (15, 0)):
        jobs = 0
        for n in range(begin, 90):
            stage.now = FIRST + n * MINUTE
            jobs += fire(stage).ran
            for claim in stage.take():
                stage.end(claim, amount=0)
        assert jobs == ran
        walk(stage)
        stage.now = FIRST + 15 * MINUTE - SECOND
        assert walk(stage).rewound == ["s"]


def test_a_clock_that_is_set_back_before_it_is_where_it_was_has_no_tick_run_twice(stage: Stage) -> None:
    stage.register("w1", DAY)
    put(stage)
    fire(stage)
    found: list[int] = []
    for begin, end in ((0, 90), (15, 80), (15, 80), (15, 95)):
        for n in range(begin, end):
            stage.now = FIRST + n * MINUTE
            if fire(stage).ran:
                found.append(n)
            for claim in stage.take():
                stage.end(claim, amount=0)
        walk(stage)
        stage.now = FIRST + 15 * MINUTE - SECOND
        assert walk(stage).rewound == ["s"]
    assert found == list(range(95))


def test_a_schedule_that_fell_silent_ticks_again(stage: Stage) -> None:
    put(stage)
    fire(stage)
    stage.client.delete(stage.keys("ticking"))
    walk(stage)
    fire(stage)
    stage.now = FIRST + SECOND
    assert fire(stage).ran == 1


@pytest.mark.parametrize("field", ["", "seen"])
def test_a_record_that_cannot_be_read_holds_up_no_others(stage: Stage, field: str) -> None:
    """The walk was refused for ever, and while it waited no tick of any schedule was fired."""
    put(stage, row("a"), row("b"))
    fire(stage)
    if field:
        stage.client.hset(stage.keys("schedule:a"), field, "\xff")
    else:
        stage.client.delete(stage.keys("schedule:a"))
        stage.client.set(stage.keys("schedule:a"), "")
    stage.client.zrem(stage.keys("ticking"), "b")
    assert walk(stage).after == ""
    assert "b" in stage.members("ticking")
    stage.run(ticks.delete_schedule(stage.keys, "a"))
    fire(stage)


def test_a_walk_goes_in_pieces(stage: Stage) -> None:
    put(stage, *(row(f"s{n}") for n in range(5)))
    first = walk(stage, limit=3)
    assert first.after == "s2"
    assert walk(stage, first.after, 3).after == ""
