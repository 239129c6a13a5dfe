from __future__ import annotations

import pytest

from headrace.protocol.stats_calls import Counts
from tests.scripts.stage import SECOND, Stage
from tests.scripts.stats_stage import add, fresh, held


def test_a_bucket_ends_when_it_should_however_late_it_is_written(stage: Stage) -> None:
    """R11, RS11."""
    fresh(stage)
    ends = stage.now // SECOND + 100
    for number in (1, 2):
        add(stage, number, Counts({("2099", ends): {"a": {"n": 1}}}, {}))
        assert stage.client.ttl(stage.keys("stat:2099:a")) in range(90, 101)
    assert held(stage, date="2099") == {"n": 2}


def test_what_has_ended_is_not_made_again(stage: Stage) -> None:
    fresh(stage)
    past, future = stage.now // SECOND - 1, stage.now // SECOND + 100
    add(stage, 1, Counts({("1999", past): {"a": {"n": 1}}, ("2099", future): {"a": {"n": 1}}}, {}))
    assert held(stage, date="1999") == {}
    assert held(stage, date="2099") == {"n": 1}


@pytest.mark.mangles
def test_a_counter_that_cannot_be_added_to_stops_no_other(stage: Stage) -> None:
    """R08: overflow and what is no number are told."""
    fresh(stage)
    ends = stage.now // SECOND + 100
    stage.client.hset(stage.keys("stat:2099:a"), mapping={"full": 2**63 - 1, "odd": "x"})
    stage.client.set(stage.keys("stat:2099:b"), "no hash")
    answer = add(
        stage, 1, Counts({("2099", ends): {"a": {"full": 1, "odd": 1, "n": 1}, "b": {"n": 1}, "c": {"n": 1}}}, {})
    )
    assert answer.word == "ok"
    assert set(answer.refused) == {"2099:a full", "2099:a odd", "2099:b n"}
    assert stage.client.hget(stage.keys("stat:2099:a"), "n") == b"1"
    assert held(stage, "c", "2099") == {"n": 1}


def test_the_index_forgets_what_has_ended(stage: Stage) -> None:
    """R07, RS10."""
    fresh(stage)
    now = stage.now // SECOND
    add(stage, 1, Counts({}, {"": {"a": now + 50}, "a": {"x": now + 50, "y": now + 20}}))
    add(stage, 2, Counts({}, {"a": {"x": now + 30}}))
    assert stage.members("stat-sub:/a") == {"y": now + 20, "x": now + 50}
    assert stage.client.ttl(stage.keys("stat-sub:/a")) in range(40, 51)
    stage.now += 25 * SECOND
    add(stage, 3, Counts({}, {"a": {"z": now + 60}}))
    assert stage.members("stat-sub:/a") == {"x": now + 50, "z": now + 60}
    assert stage.members("stat-sub:/") == {"a": now + 50}


def test_an_index_of_what_is_over_is_not_made(stage: Stage) -> None:
    fresh(stage)
    add(stage, 1, Counts({}, {"a": {"x": stage.now // SECOND - 5}}))
    assert stage.client.exists(stage.keys("stat-sub:/a")) == 0


def test_many_at_once(stage: Stage) -> None:
    fresh(stage)
    ends = stage.now // SECOND + 100
    wide = {f"f{n}": n for n in range(2000)}
    add(stage, 1, Counts({("2099", ends): {"a": wide}}, {"a": {f"p{n}": ends for n in range(2500)}}))
    assert held(stage, date="2099") == wide
    assert stage.client.zcard(stage.keys("stat-sub:/a")) == 2500
