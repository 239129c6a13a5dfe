from __future__ import annotations

import pytest

from headrace.protocol.consume import settle, unpark
from tests.scripts.stage import KEEP, LEVEL, SECOND, Stage


def park(stage: Stage, count: int, **facts: object) -> list[str]:
    stage.put(count, **facts)
    claims = stage.take(queues=[str(facts.get("queue", "default"))])
    rows = [(stage.outcome(claim, "parked"), claim.score) for claim in claims]
    stage.run(settle(stage.keys, "w1", stage.next(), rows, KEEP))
    return [c.id for c in claims]


def test_jobs_line_up_once_their_code_has_come(stage: Stage) -> None:
    (id,) = park(stage, 1, task="new", queue="q", priority=1)
    (other,) = park(stage, 1, task="other")
    stage.doze("q")
    stage.now += SECOND
    assert stage.run(unpark(stage.keys, "new", 10, ["q"])) == 1
    assert stage.members("ready:q") == {id: stage.now - SECOND - LEVEL}
    assert stage.tokens("q") == 1
    assert stage.names("parking") == {"other"}
    assert stage.state(other) == "parked"
    assert stage.take(queues=["q"])[0].attempt == 1


@pytest.mark.parametrize("limit", [0, 1, 499, 500])
def test_no_more_than_the_limit(stage: Stage, limit: int) -> None:
    park(stage, 1000)
    assert stage.run(unpark(stage.keys, "add", limit, ["default"])) == limit
    assert len(stage.members("parked:add")) == 1000 - limit
    assert stage.names("parking") == {"add"}


def test_nothing_is_parked(stage: Stage) -> None:
    assert stage.run(unpark(stage.keys, "add", 10, ["default"])) == 0
    assert stage.client.dbsize() == 0


def test_an_id_without_a_record_is_dropped(stage: Stage) -> None:
    gone, good = park(stage, 2)
    stage.client.delete(stage.keys.job(gone))
    stage.run(unpark(stage.keys, "add", 10, ["default"]))
    assert stage.ready() == [good]


def test_jobs_of_queues_that_the_worker_does_not_serve_stay(stage: Stage) -> None:
    park(stage, 3, queue="mail")
    (id,) = park(stage, 1)
    stage.doze("mail")
    assert stage.run(unpark(stage.keys, "add", 10, ["default"])) == 1
    assert stage.ready() == [id]
    assert stage.run(unpark(stage.keys, "add", 10, ["default"])) == 0
    assert (len(stage.members("parked:add")), stage.names("parking"), stage.tokens("mail")) == (3, {"add"}, 0)


def test_many_of_a_queue_that_it_does_not_serve_hide_no_others_for_ever(stage: Stage) -> None:
    park(stage, 500, queue="mail")
    stage.now += SECOND
    (id,) = park(stage, 1)
    stage.now += SECOND
    assert stage.run(unpark(stage.keys, "add", 10, ["default"])) == 0
    assert stage.run(unpark(stage.keys, "add", 10, ["default"])) == 1
    assert stage.ready() == [id]
