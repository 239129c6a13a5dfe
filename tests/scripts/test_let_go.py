"""let_go.lua: a start holds its gates exactly as long as it is claimed."""

from __future__ import annotations

import pytest

from headrace.model.limit_rules import Concurrency, LimitRule
from headrace.protocol import consume
from tests.scripts.limited_stage import ACCOUNT, API, LEASE, declare, gate, promote, put
from tests.scripts.stage import KEEP, SECOND, Stage

ONE = LimitRule("one", concurrency=Concurrency(1))


def test_a_late_end_releases_nothing_twice(stage: Stage) -> None:
    declare(stage, {"call": [ONE]})
    put(stage, 1, 2, 3)
    (claim,) = stage.take("w1", 10)
    assert stage.run(consume.reclaim(stage.keys, "w1", True, 500, 0)) == ("done", 1)
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
    stage.run(consume.reclaim(stage.keys, "w2", True, 500, 0))
    assert stage.tokens() == 1
    assert gate(stage, "api:")[1] == 0
    assert not stage.client.exists(stage.keys("slots:w2"))
    assert len(stage.take("w1", 10)) == 2


def test_a_start_holds_its_gates_as_long_as_its_worker_renews(stage: Stage) -> None:
    declare(stage, {"call": [ONE, ACCOUNT]})
    put(stage, "x", "y")
    (claim,) = stage.take(limit=10)
    for _ in range(30):
        stage.now += 3600 * SECOND
        assert stage.run(consume.renew(stage.keys, "w1", LEASE)).alive
        promote(stage)
        assert stage.take(limit=10) == []
    assert gate(stage, "one:")[1] == gate(stage, "account:x")[1] == 1
    for key in ("gate:one:", "gate:account:x", "slots:w1"):
        assert stage.client.ttl(stage.keys(key)) == -1, key
    stage.end(claim)
    assert len(stage.take(limit=10)) == 1


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


@pytest.mark.parametrize(("ended", "held"), [(1, 4), (4, 1)], ids=["one of four that hold", "four of which one holds"])
def test_a_settle_lets_go_of_those_that_hold_and_no_others(stage: Stage, ended: int, held: int) -> None:
    declare(stage, {"call": [LimitRule("five", concurrency=Concurrency(5))]})
    limited = put(stage, *range(held))
    put(stage, *range(ended), task="plain")
    claims = stage.take(limit=10)
    first = [claim for claim in claims if claim.id == limited[0]]
    plain = [claim for claim in claims if claim.task == "plain"]
    assert gate(stage, "five:")[1] == held
    assert not stage.settle(*map(stage.outcome, [*first, *plain][:ended]), request=1).stale
    assert gate(stage, "five:")[1:] == (held - 1, False)
    assert stage.client.hlen(stage.keys("slots:w1")) == held - 1
