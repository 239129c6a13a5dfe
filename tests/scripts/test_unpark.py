from __future__ import annotations

import pytest

from headrace.job import Outcome
from headrace.protocol.consume import unpark
from tests.scripts.stage import LEVEL, SECOND, Stage


def park(stage: Stage, count: int, **facts: object) -> list[str]:
    stage.put(count, **facts)
    claims = stage.take(queues=[str(facts.get("queue", "default"))])
    stage.settle(*(Outcome(c.id, c.token, "parked") for c in claims))
    return [c.id for c in claims]


def test_jobs_line_up_once_their_code_has_come(stage: Stage) -> None:
    (id,) = park(stage, 1, task="new", queue="q", priority=1)
    (other,) = park(stage, 1, task="other")
    stage.doze("q")
    stage.now += SECOND
    assert stage.run(unpark(stage.keys, "new", 10, stage.now)) == 1
    assert stage.members("ready:q") == {id: stage.now - LEVEL}
    assert stage.tokens("q") == 1
    assert stage.names("parking") == {"other"}
    assert stage.state(other) == "parked"
    assert stage.take(queues=["q"])[0].attempt == 1


@pytest.mark.parametrize("limit", [1, 499, 500, 501, 999, 1000])
def test_no_more_than_the_limit(stage: Stage, limit: int) -> None:
    park(stage, 1000)
    assert stage.run(unpark(stage.keys, "add", limit, stage.now)) == limit
    assert len(stage.members("parked:add")) == 1000 - limit
    assert stage.names("parking") == ({"add"} if limit < 1000 else set())


def test_nothing_is_parked(stage: Stage) -> None:
    assert stage.run(unpark(stage.keys, "add", 10, stage.now)) == 0
    assert stage.client.dbsize() == 0


def test_an_id_without_a_record_is_dropped(stage: Stage) -> None:
    gone, good = park(stage, 2)
    stage.client.delete(stage.keys.job(gone))
    stage.run(unpark(stage.keys, "add", 10, stage.now))
    assert stage.ready() == [good]
