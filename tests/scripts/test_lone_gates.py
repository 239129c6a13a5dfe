"""lone_gates.lua: gates that one start has to itself are read, changed and stored without being made."""

from __future__ import annotations

from random import Random

import pytest

from headrace.model.job import Claim
from headrace.model.limit_rules import Concurrency, LimitRule, Rate
from tests.scripts.limited_stage import change, declare, gate, promote, put
from tests.scripts.stage import SECOND, Stage

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
