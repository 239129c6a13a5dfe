from __future__ import annotations

import pytest

from headrace.model.form import Form
from headrace.model.ids import is_ordered, is_unique, make_id, tick_of
from headrace.model.unique_rules import UniqueRule
from headrace.protocol import ticks
from headrace.schedules.schedule_handle import upcoming
from headrace.schedules.timetables import Timing, time_of
from tests.schedules.bench_of_ticks import FIRST, MINUTE, fire, put, row, schedule, tick_id, told
from tests.scripts.stage import SECOND, Stage
from tests.scripts.unique_stage import holder, one, only
from tests.scripts.unique_stage import put as put_unique


def test_a_tick_makes_its_job_when_it_is_due_and_once(stage: Stage) -> None:
    assert put(stage) == ["created"]
    first = fire(stage)
    assert (first.ran, first.due, stage.ready()) == (0, FIRST, [])
    stage.now = FIRST - 1
    assert fire(stage).ran == 0
    stage.now = FIRST
    assert fire(stage).ran == 1
    id = tick_id("s", FIRST, ordered=False)
    assert stage.ready() == [id]
    assert tick_of(id, "s") == FIRST
    assert tick_of(id, "other") == 0
    assert tick_of(make_id(FIRST // 1000, 7), "s") == 0
    assert stage.record(id)["task"] == b"add"
    assert stage.tokens() == 1
    for _ in range(3):
        assert fire(stage).ran == 0
    assert told(stage) == [(0, "ran", 1)]
    assert schedule(stage).runs == 1
    (claim,) = stage.take()
    assert (claim.id, claim.task, claim.headers) == (id, "add", b"\x81\xa1a\xa1b")


def test_a_day_of_ticks_is_complete_whoever_fires_and_refills(stage: Stage) -> None:
    put(stage)
    for minute in range(60):
        stage.now = FIRST + minute * MINUTE + minute
        fire(stage)
        stage.run(ticks.fire(stage.keys))
    # The schedule came to be forty seconds before the first whole minute.
    assert [tick for tick, _, _ in told(stage)] == [60 * minute for minute in range(60)]
    assert len(stage.ready()) == 60


def test_jitter_delays_the_job_and_not_its_tick(stage: Stage) -> None:
    timing = Timing(step=MINUTE, jitter=30 * SECOND)
    put(stage, row(timing=timing))
    fire(stage)
    nominal, due = schedule(stage).ticks[0]
    assert (nominal, due) == (FIRST, timing.due("s", FIRST))
    assert due > FIRST
    # A preview shows when jobs start.
    told = [due for _, due in schedule(stage).ticks[:5]]
    assert upcoming(schedule(stage), stage.now, 5) == [time_of(one) for one in told]
    assert len({one - tick for tick, one in schedule(stage).ticks}) > 1
    stage.now = due - 1
    assert fire(stage).ran == 0
    stage.now = due
    assert fire(stage).ran == 1
    assert stage.ready() == [tick_id("s", FIRST, ordered=False)]


def test_no_more_than_the_limit_and_the_rest_stays_due(stage: Stage) -> None:
    put(stage, *(row(f"s{n}") for n in range(7)))
    while stage.run(ticks.read_schedules(stage.keys, ["s6"])).rows[0].ticks == []:
        fire(stage)
    stage.now = FIRST
    assert [fire(stage, 3).ran for _ in range(4)] == [3, 3, 1, 0]
    assert len(stage.ready()) == 7


@pytest.mark.parametrize("until", [FIRST + 2 * MINUTE, FIRST + 2 * MINUTE + 1])
def test_the_last_tick_ends_a_schedule_which_is_shown_for_a_week(stage: Stage, until: int) -> None:
    put(stage, row(timing=Timing(step=MINUTE, until=until)))
    for n in range(5):
        stage.now = FIRST + n * MINUTE
        fire(stage)
    assert len(told(stage)) == 3
    assert schedule(stage).state == "ended"
    ended = FIRST + 2 * MINUTE
    stage.now = ended + 7 * 86400 * SECOND - 1
    fire(stage)
    assert schedule(stage).state == "ended"
    stage.now += 1
    fire(stage)
    assert stage.run(ticks.read_schedules(stage.keys)).count == 0
    assert stage.members("ticking") == {}


def test_after_so_many_jobs_it_has_ended(stage: Stage) -> None:
    put(stage, row(left=2, missed="all"))
    fire(stage)
    stage.now = FIRST + 5 * MINUTE
    assert fire(stage).ran == 2
    assert schedule(stage).state == "ended"
    stage.now += 5 * MINUTE
    assert fire(stage).ran == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [("rules", b"\xc1"), ("rules", b"\x01"), ("ticks", b"\xc1"), ("ticks", b"\xff" * 16), ("ticks", b"\xff" * 20)],
)
def test_a_record_that_cannot_be_read_is_named_and_holds_nothing_up(stage: Stage, field: str, value: bytes) -> None:
    put(stage, row("a"), row("b"))
    fire(stage)
    stage.client.hset(stage.keys("schedule:a"), field, value)
    assert schedule(stage, "a").ticks == ([] if field == "ticks" else schedule(stage, "b").ticks)
    stage.now = FIRST
    fired = fire(stage)
    assert (fired.ran, fired.broken) == (1, ["a"])
    stage.now += 2 * MINUTE
    assert fire(stage).ran == 1
    # It is looked at again: someone may have put it right.
    assert "a" in stage.members("ticking")


@pytest.mark.parametrize("value", [b"\xc1", b"\x01", b""])
def test_rules_that_cannot_be_read_before_the_first_ticks_are_named_and_no_other_is_misread(
    stage: Stage, value: bytes
) -> None:
    put(stage, row("a"), row("b"))
    stage.client.hset(stage.keys("schedule:a"), "rules", value)
    fired = stage.run(ticks.fire(stage.keys))
    assert ([one.name for one in fired.wanting], fired.broken) == (["b"], ["a"])


@pytest.mark.parametrize("field", ["version", "about", "known", "rules"])
def test_a_record_without_what_ticks_are_reckoned_by_is_named_and_no_other_is_misread(stage: Stage, field: str) -> None:
    put(stage, row("a"), row("b"))
    stage.client.hdel(stage.keys("schedule:a"), field)
    fired = stage.run(ticks.fire(stage.keys))
    assert ([one.name for one in fired.wanting], fired.broken) == (["b"], ["a"])


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "cancel_other", "allow_all"])
@pytest.mark.parametrize("became", ["succeeded", "failed", "cancelled", "corrupt", "its record is gone"])
def test_the_next_tick_runs_whatever_became_of_the_job_before(stage: Stage, became: str, overlap: str) -> None:
    put(stage, row(overlap=overlap))
    fire(stage)
    for minute in range(3):
        stage.now = FIRST + minute * MINUTE
        assert fire(stage).ran == 1
        (claim,) = stage.take()
        assert tick_of(claim.id, "s") == stage.now
        if became == "its record is gone" and minute < 2:
            stage.client.delete(stage.keys.job(claim.id))
            stage.client.zrem(stage.keys("claims:w1"), claim.id)
        else:
            stage.end(claim, became if became != "its record is gone" else "succeeded")


def test_a_bite_is_bounded_by_the_ticks_that_it_looks_at(stage: Stage) -> None:
    """Also by those that do not run: a script holds up everyone else."""
    put(stage, *(row(f"s{n}", overlap="skip", missed="all") for n in range(4)))
    while any(not one.ticks for one in stage.run(ticks.read_schedules(stage.keys)).rows):
        fire(stage)
    stage.now = FIRST + 10 * MINUTE
    # Of eleven ticks of each schedule one runs.
    assert [stage.run(ticks.fire(stage.keys, 12)).ran for _ in range(3)] == [2, 2, 0]


def test_a_tick_of_a_unique_task_is_skipped_while_another_job_has_its_name(stage: Stage) -> None:
    form = Form("add", unique=UniqueRule("n"))
    put(stage, row(form=form, unique="n"))
    other = one(stage)
    fire(stage)
    stage.now = FIRST
    assert fire(stage).ran == 0
    assert schedule(stage).last[-1].text == other
    stage.end(only(stage))
    stage.now += MINUTE
    assert fire(stage).ran == 1
    (claim,) = stage.take()
    assert is_unique(claim.id)
    assert put_unique(stage)[1].duplicates
    stage.now += MINUTE
    fire(stage)
    assert [what for _, what, _ in told(stage)] == ["skipped", "ran", "skipped"]
    stage.end(claim)
    assert holder(stage) is None


def test_a_tick_of_a_unique_task_waits_for_its_turn(stage: Stage) -> None:
    put(stage, row(form=Form("add", unique=UniqueRule("n", "start")), unique="n", overlap="buffer_one"))
    fire(stage)
    stage.now = FIRST
    fire(stage)
    (first,) = stage.take()
    stage.now += MINUTE
    fire(stage)
    second = holder(stage)
    assert second is not None
    assert is_ordered(second)
    assert stage.state(second) == "blocked"
    stage.end(first)
    assert [claim.id for claim in stage.take()] == [second]
    assert holder(stage) is None
