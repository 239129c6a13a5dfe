"""let_go.lua: a start holds its gates exactly as long as it is claimed."""

from __future__ import annotations

from random import Random

import pytest

from headrace.model.job import Claim
from headrace.model.limit_rules import Concurrency, LimitRule, Rate
from headrace.protocol import consume
from tests.scripts.limited_stage import ACCOUNT, API, LEASE, change, declare, gate, promote, put
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


VALUES = range(12)
PAUSED = "nobody"


def gates(stage: Stage, limit: str) -> dict[int, bytes | None]:
    """The gates as they are stored, from now on until a script unlinks them: the server's clock is not the stage's."""
    keys = [stage.keys(f"gate:{limit}:{value}") for value in VALUES]
    with stage.client.pipeline() as pipe:
        for key in keys:
            pipe.persist(key)
        pipe.mget(keys)
        return dict(zip(VALUES, pipe.execute()[-1], strict=True))


@pytest.mark.parametrize("seed", range(8))
def test_they_say_what_those_say_that_are_made(stage: Stage, seed: int) -> None:
    """An operator's word on any value has all gates of its limit made, so a twin limit has one."""
    dice = Random(seed)
    rate, dear = dice.choice([(None, 1), (Rate(5, per=1), 2), (Rate(1, per=100), 1), (Rate(4, per=1, burst=2), 2)])
    most = Concurrency(dice.choice([1, 2])) if rate is None or dice.random() < 0.6 else None
    lone, made = (LimitRule(name, rate, most, by="account") for name in ("lone", "made"))
    declare(stage, {"a": [lone], "b": [made]})
    change(stage, "made", paused=True, value=PAUSED)
    running: dict[str, list[Claim]] = {"a": [], "b": []}
    seen = set[bytes | None]()
    for _ in range(25):
        values = [dice.choice(VALUES) for _ in range(dice.randrange(6))]
        cost = dice.choice([1, 1, 1, dear])
        for task in running:
            put(stage, *values, task=task, cost=cost)
        promote(stage)
        for claim in stage.take(limit=1000):
            running[claim.task].append(claim)
        assert len(running["a"]) == len(running["b"])
        assert gates(stage, "lone") == gates(stage, "made")
        seen |= set(gates(stage, "lone").values())
        stage.now += dice.choice([1, 1000, SECOND // 10, SECOND])
        kind = dice.choice(["succeeded", "succeeded", "released", "failed"])
        some = dice.randrange(len(running["a"]) + 1)
        for task, claims in running.items():
            # In the order of their values, which is not that of their turns.
            claims.sort(key=lambda claim: (claim.args, claim.id))
            stage.settle(*(stage.outcome(claim, kind) for claim in claims[:some]))
            gates(stage, {"a": "lone", "b": "made"}[task])
            running[task] = claims[some:]
        assert gates(stage, "lone") == gates(stage, "made")
    assert len(seen) > 5


def test_one_whose_rate_counts_on_stays_until_then(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("lone", Rate(10, per=1000), Concurrency(1), by="account")]})
    put(stage, "x", "y")
    claims = stage.take(limit=10)
    assert gate(stage, "lone:x") == gate(stage, "lone:y") == (stage.now + 90 * SECOND, 1, False)
    stage.now += 50 * SECOND
    stage.end(claims[0])
    assert gate(stage, "lone:x")[1] == 0
    assert 40_000 < stage.client.pttl(stage.keys("gate:lone:x")) <= 51_000
    stage.now += 50 * SECOND
    stage.end(claims[1])
    assert not stage.client.exists(stage.keys("gate:lone:y"))


def test_a_gate_of_two_queues_is_told_of_between_them_in_one_claim(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("lone", concurrency=Concurrency(1), by="account")]})
    for queue in ("default", "low"):
        put(stage, "x", "y", queue=queue)
    claims = stage.take(limit=10, queues=["default", "low"])
    assert len(claims) == 2
    for claim in claims:
        stage.end(claim)
    assert len(stage.take(limit=10, queues=["default", "low"])) == 2


def test_starts_that_end_together_with_others_let_go_of_all(stage: Stage) -> None:
    lone, shared = (
        LimitRule("lone", concurrency=Concurrency(1), by="account"),
        LimitRule("all", concurrency=Concurrency(9)),
    )
    declare(stage, {"lone": [lone], "shared": [shared], "both": [lone, shared], "plain": []})
    for task in ("shared", "lone", "plain", "both"):
        put(stage, f"{task}1", f"{task}2", task=task)
    claims = stage.take(limit=10)
    assert len(claims) == 8
    stage.settle(*(stage.outcome(claim) for claim in claims))
    assert not stage.client.keys(stage.keys("gate:*"))
    assert not stage.client.keys(stage.keys("slots:*"))
