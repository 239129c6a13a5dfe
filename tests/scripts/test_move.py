from __future__ import annotations

from typing import Any

import pytest

from headrace.model.form import Form
from headrace.protocol import overviews
from headrace.protocol.produce import broadcast, move
from tests.scripts import limited_stage as limits
from tests.scripts.stage import LEVEL, SECOND, Stage


def moved(stage: Stage, id: str, **changes: Any) -> str:
    return stage.run(move(stage.keys, id, **changes))


def test_a_ready_job_keeps_its_age_in_another_queue_and_at_another_priority(stage: Stage) -> None:
    (id,) = stage.put(priority=1)
    born = stage.now
    stage.now += 5 * SECOND
    assert moved(stage, id, queue="mail", priority=3) == "moved ready"
    assert stage.members("ready:default") == {}
    assert stage.members("ready:mail") == {id: born - 3 * LEVEL}
    assert {stage.record(id)[name] for name in ("queue", "priority")} == {b"mail", b"3"}
    assert stage.tokens("mail") == 1
    (claim,) = stage.take(queues=["mail"])
    assert (claim.id, claim.priority) == (id, 3)


def test_a_scheduled_job_starts_now_or_at_another_time(stage: Stage) -> None:
    (id,) = stage.put(delay=60 * SECOND)
    assert moved(stage, id, delay=5 * SECOND) == "moved scheduled"
    assert stage.members("scheduled") == {id: stage.now + 5 * SECOND}
    # One that sleeps until the next due time learns of the earlier one.
    stage.doze()
    assert moved(stage, id, at=stage.now + SECOND, queue="mail") == "moved scheduled"
    assert stage.tokens("mail") == 1
    assert moved(stage, id, priority=2) == "moved scheduled"
    assert stage.members("scheduled") == {id: stage.now + SECOND}
    assert moved(stage, id, delay=0) == "moved ready"
    assert stage.members("scheduled") == {}
    assert stage.members("ready:mail") == {id: stage.now - 2 * LEVEL}


def test_a_ready_job_is_put_off(stage: Stage) -> None:
    (id,) = stage.put()
    assert moved(stage, id, delay=SECOND) == "moved scheduled"
    assert (stage.state(id), stage.ready()) == ("scheduled", [])
    assert stage.members("scheduled") == {id: stage.now + SECOND}


def test_the_same_move_again_changes_nothing(stage: Stage) -> None:
    (id,) = stage.put()
    assert moved(stage, id, queue="mail", priority=5) == "moved ready"
    before = stage.everything()
    assert moved(stage, id, queue="mail", priority=5) == "moved ready"
    assert stage.everything() == before


def test_what_does_not_wait_for_a_time_or_a_worker_stays(stage: Stage) -> None:
    stage.register()
    (asked,) = stage.run(broadcast(stage.keys, Form("add"), b"\x90", [("w1", "0" * 18 + "100")]))
    running, ended = stage.running(), stage.finished()
    stage.put(key="k", ordered=True)
    (blocked,) = stage.put(key="k", ordered=True)
    before = stage.everything()
    words = [moved(stage, id, queue="mail", delay=0) for id in (asked, running.id, ended, blocked, "0" * 21)]
    assert words == ["broadcast", "running", "succeeded", "blocked", "missing"]
    assert stage.everything() == before


def test_a_job_is_not_moved_to_where_it_would_expire(stage: Stage) -> None:
    (id,) = stage.put(expires=10 * SECOND)
    before = stage.everything()
    assert moved(stage, id, delay=10 * SECOND) == "late"
    assert stage.everything() == before
    assert moved(stage, id, delay=9 * SECOND) == "moved scheduled"


def test_an_ordered_job_waits_for_its_turn_wherever_it_goes(stage: Stage) -> None:
    (first,) = stage.put(key="k", ordered=True)
    (second,) = stage.put(key="k", ordered=True, delay=60 * SECOND)
    assert moved(stage, second, delay=0, queue="mail") == "moved blocked"
    assert stage.state(second) == "blocked"
    # It keeps its turn in another queue.
    assert moved(stage, first, queue="mail") == "moved ready"
    (claim,) = stage.take(queues=["mail"])
    stage.end(claim)
    assert stage.ready("mail") == [second]


@pytest.mark.parametrize("delay", [-1, 5 * SECOND])
def test_a_limited_job_leaves_its_lane(stage: Stage, delay: int) -> None:
    limits.declare(stage, {"add": [limits.API]})
    ids = stage.put(5)
    born = stage.now
    stage.now += SECOND
    assert moved(stage, ids[0], queue="mail", delay=delay).startswith("moved")
    assert {one.name: one.size for one in stage.run(overviews.overview(stage.keys)).queues}["default"] == 4
    if delay < 0:
        (lane,) = list(stage.client.keys("*lane:mail*"))
        assert stage.client.zrange(lane, 0, -1, withscores=True) == [(ids[0].encode(), born)]
        assert [claim.id for claim in stage.take(queues=["mail"])] == [ids[0]]


def test_a_parked_job_lines_up_where_a_worker_may_know_it(stage: Stage) -> None:
    (id,) = stage.put()
    born = stage.now
    (claim,) = stage.take()
    stage.end(claim, "parked", b"", 0)
    assert stage.state(id) == "parked"
    stage.now += SECOND
    assert moved(stage, id, queue="mail") == "moved ready"
    assert (stage.names("parking"), stage.ready("mail")) == (set(), [id])
    assert born <= stage.members("ready:mail")[id] <= stage.now
