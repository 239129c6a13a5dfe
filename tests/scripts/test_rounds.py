"""rounds.lua: turns between the values of a limit."""

from __future__ import annotations

from itertools import pairwise

from headrace.model.limit_rules import LimitRule
from tests.scripts.limited_stage import ACCOUNT, API, declare, ids, put
from tests.scripts.stage import KEEP, Stage

FAIR = LimitRule("fair", by="account")


def test_values_take_turns(stage: Stage) -> None:
    declare(stage, {"call": [FAIR]})
    x = put(stage, *["x"] * 6)
    y = put(stage, *["y"] * 2)
    assert ids(stage.take(limit=5)) == [x[0], y[0], x[1], y[1], x[2]]
    stage.now += 1
    z = put(stage, "z", "z")
    # A newcomer does not get what it has missed.
    assert set(ids(stage.take(limit=2))) == {x[3], z[0]}


def test_a_value_waits_for_two_rotations_at_most(stage: Stage) -> None:
    declare(stage, {"call": [FAIR]})
    values = [f"v{n}" for n in range(10)]
    value_of = {id: value for _ in range(9) for id, value in zip(put(stage, *values), values, strict=True)}
    taken = [value_of[id] for id in ids(stage.take(limit=80))]
    for value in values:
        starts = [n for n, one in enumerate(taken) if one == value]
        assert max(after - before for before, after in pairwise(starts)) <= 20, value


def test_many_lanes_that_cannot_start_do_not_end_the_claims(stage: Stage) -> None:
    """Their gates were closed by jobs of another class."""
    declare(stage, {"call": [ACCOUNT], "both": [API, ACCOUNT]})
    values = [f"v{n}" for n in range(150)]
    put(stage, *values)
    assert len(stage.take(limit=1000)) == 150
    put(stage, *values, task="both")
    put(stage, "free", task="both")
    for claim in stage.claim("w1").jobs:
        stage.end(claim, amount=KEEP)
    assert stage.client.zcard(stage.keys("class:default|api,account=")) == 150


def test_a_claim_of_one_job_gives_values_their_turns(stage: Stage) -> None:
    """It reads the lane of one start only, and takes it for alone no more than a large claim does."""
    declare(stage, {"call": [FAIR]})
    values = [f"v{n}" for n in range(9)]
    value_of = {id: value for _ in range(8) for id, value in zip(put(stage, *values), values, strict=True)}
    taken = [value_of[ids(stage.take(limit=1))[0]] for _ in range(72)]
    for value in values:
        starts = [n for n, one in enumerate(taken) if one == value]
        assert max(after - before for before, after in pairwise(starts)) <= 18, value
