"""let_go.lua: a start holds its gates exactly as long as it is claimed."""

from __future__ import annotations

import pytest

from headrace.model.limit_rules import Concurrency, LimitRule
from headrace.protocol import consume
from tests.scripts.limited_stage import ACCOUNT, API, declare, gate, ids, put
from tests.scripts.stage import KEEP, SECOND, Stage

ONE = LimitRule("one", concurrency=Concurrency(1))


def test_a_late_end_releases_nothing_twice(stage: Stage) -> None:
    declare(stage, {"call": [ONE]})
    put(stage, 1, 2, 3)
    (claim,) = stage.take("w1", 10)
    assert stage.run(consume.reclaim(stage.keys, "w1", True, 500, 0, stage.now)) == ("done", 1)
    (again,) = stage.take("w2", 10)
    declare(stage, {"call": [ONE]}, "w1")
    assert stage.settle(stage.outcome(claim)).stale == [claim.id]
    assert gate(stage, "one:")[1] == 1
    assert stage.take("w3", 10) == []
    stage.end_as("w2", again)
    assert len(stage.take("w3", 10)) == 1


def test_a_dead_worker_gives_its_slots_back(stage: Stage) -> None:
    declare(stage, {"call": [API]})
    put(stage, *range(4))
    assert len(stage.take("w2", 10)) == 2
    stage.doze()
    stage.run(consume.reclaim(stage.keys, "w2", True, 500, 0, stage.now))
    assert stage.tokens() == 1
    assert gate(stage, "api:")[1] == 0
    assert not stage.client.exists(stage.keys("slots:w2"))
    assert len(stage.take("w1", 10)) == 2


@pytest.mark.mangles
def test_slots_come_back_of_jobs_whose_records_are_gone(stage: Stage) -> None:
    declare(stage, {"call": [ONE]})
    put(stage, 1, 2)
    (claim,) = stage.take(limit=10)
    stage.client.delete(stage.keys.job(claim.id))
    stage.settle(stage.outcome(claim, "failed"))
    assert len(stage.take(limit=10)) == 1


@pytest.mark.parametrize("kind", ["released", "parked", "corrupt"])
def test_the_permit_of_what_did_not_start_comes_back(stage: Stage, kind: str) -> None:
    declare(stage, {"call": [ACCOUNT]})
    put(stage, "x", "x")
    (claim,) = stage.take(limit=10)
    stage.end(claim, kind, b"{}")
    assert len(stage.take(limit=10)) == 1


def test_a_start_that_the_store_forgot_holds_its_gates_again(stage: Stage) -> None:
    declare(stage, {"call": [ONE]})
    first, second = put(stage, 1, 2)
    answer = stage.run(consume.restore(stage.keys, "w1", [(first, stage.now)]))
    assert (answer.others, answer.gone) == ([], [])
    assert gate(stage, "one:")[1] == 1
    assert stage.take(limit=10) == []
    stage.settle(stage.outcome(type("C", (), {"id": first, "token": stage.now})()))  # type: ignore[arg-type]
    assert ids(stage.take(limit=10)) == [second]


def test_a_hundred_starts_let_go_in_one_settle(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("fair", concurrency=Concurrency(1), by="account")]})
    put(stage, *range(100), *range(100))
    for _ in range(2):
        claims = stage.take(limit=1000)
        assert len(claims) == 100
        stage.settle(*(stage.outcome(claim, amount=0) for claim in claims))
    assert stage.take() == []
    assert {key.decode().partition("}:")[2] for key in stage.client.keys("*gate*")} == set()
    assert SECOND < KEEP
