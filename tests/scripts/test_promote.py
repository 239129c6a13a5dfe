from __future__ import annotations

import pytest

from headrace.protocol.consume import promote
from tests.scripts.stage import LEVEL, SECOND, START, Stage


def test_a_job_lines_up_when_its_time_has_come(stage: Stage) -> None:
    (early,) = stage.put(delay=SECOND, priority=2, queue="a")
    (late,) = stage.put(delay=2 * SECOND)
    assert stage.run(promote(stage.keys, 10)) == (0, START, START + SECOND, 0)
    stage.now += SECOND
    assert stage.run(promote(stage.keys, 10)) == (1, stage.now, START + 2 * SECOND, 0)
    assert stage.members("ready:a") == {early: stage.now - 2 * LEVEL}
    assert (stage.state(early), stage.state(late)) == ("ready", "scheduled")
    stage.now += SECOND
    assert stage.run(promote(stage.keys, 10)) == (1, stage.now, 0, 0)
    assert stage.members("scheduled") == {}


def test_a_delay_that_began_while_the_clock_was_ahead_ends_by_that_clock(stage: Stage) -> None:
    stage.now += 3600 * SECOND
    stage.put(delay=SECOND)
    stage.now -= 3600 * SECOND
    due = START + 3601 * SECOND
    stage.now += 2 * SECOND
    assert stage.run(promote(stage.keys, 10)) == (0, stage.now, due, 0)
    stage.now = due
    assert stage.run(promote(stage.keys, 10)) == (1, due, 0, 0)


def test_the_queue_is_woken(stage: Stage) -> None:
    stage.put(delay=SECOND)
    stage.doze()
    stage.now += SECOND
    stage.run(promote(stage.keys, 10))
    assert stage.tokens() == 1


@pytest.mark.parametrize("limit", [1, 499, 500, 501, 999, 1000])
def test_no_more_than_the_limit_soonest_first(stage: Stage, limit: int) -> None:
    ids = stage.put(1001, delay=SECOND)
    stage.now += SECOND
    moved, _, due, _ = stage.run(promote(stage.keys, limit))
    assert (moved, due) == (limit, START + SECOND)
    assert stage.ready() == ids[:limit]


def test_an_id_without_a_record_is_dropped(stage: Stage) -> None:
    gone, good = stage.put(2, delay=SECOND)
    stage.client.delete(stage.keys.job(gone))
    stage.now += SECOND
    stage.run(promote(stage.keys, 10))
    assert stage.ready() == [good]
    assert stage.members("scheduled") == {}


def test_a_record_without_its_queue_is_found_in_the_default_one(stage: Stage) -> None:
    (id,) = stage.put(queue="a", delay=SECOND)
    stage.client.hdel(stage.keys.job(id), "queue")
    stage.now += SECOND
    stage.run(promote(stage.keys, 10))
    assert stage.ready() == [id]


@pytest.mark.mangles
def test_a_record_of_another_type_does_not_hold_up_the_others(stage: Stage) -> None:
    bad, good = stage.put(2, delay=SECOND)
    stage.client.delete(stage.keys.job(bad))
    stage.client.set(stage.keys.job(bad), "alien")
    stage.now += SECOND
    stage.run(promote(stage.keys, 10))
    assert stage.ready() == [good]
    assert stage.members("scheduled") == {}
