"""lane_turn.lua: how many jobs of one value start before another value has its turn."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.model.limit_rules import Concurrency, LimitRule, Rate
from tests.scripts.limited_stage import change, declare, ids, put
from tests.scripts.stage import Stage

FAIR = LimitRule("fair", by="account")


def test_values_that_came_together_do_not_go_in_step(stage: Stage) -> None:
    """In step the heavy ones are ahead of their share by up to a turn of the light ones: here by a third."""
    declare(stage, {"call": [FAIR]})
    values = [f"v{n}" for n in range(100)]
    for n, value in enumerate(values):
        change(stage, "fair", value=value, weight=n % 5 + 1)
    value_of = {id: value for _ in range(16) for id, value in zip(put(stage, *values), values, strict=True)}
    taken = [value_of[claim.id] for _ in range(10) for claim in stage.take(limit=80)]
    assert sorted(taken[:100]) == sorted(values), "each that is new starts first"
    shares = Counter(int(value[1:]) % 5 + 1 for value in taken[200:])
    assert all(abs(shares[weight] / 600 * 15 / weight - 1) < 0.08 for weight in range(1, 6)), shares


def test_jobs_of_one_value_start_in_one_claim_up_to_each_of_its_limits(stage: Stage) -> None:
    """They are taken together: the number at once of the value, and that of all, are exact all the same."""
    both = [LimitRule("all", concurrency=Concurrency(5)), LimitRule("each", concurrency=Concurrency(3), by="account")]
    declare(stage, {"call": both})
    came = put(stage, *["x"] * 9)
    assert ids(stage.take(limit=100)) == came[:3]
    y = put(stage, *["y"] * 9)
    assert ids(stage.take(limit=100)) == y[:2]


def lane_moves(stage: Stage, limit: int) -> tuple[int, int, int]:
    """What a claim takes out of lanes, what it puts back, and what it starts."""
    with stage.client.monitor() as monitor:
        started = len(stage.take(limit=limit))
        stage.client.echo("done")
        out = back = 0
        while not (line := monitor.next_command()["command"]).startswith("ECHO"):
            words = line.split()
            if words[0] == "ZPOPMIN" and ":lane:" in words[1]:
                out += int(words[2])
            elif words[0] == "ZADD" and ":lane:" in words[1]:
                back += len(words) // 2 - 1
    return out, back, started


@pytest.mark.parametrize(
    ("rate", "first"),
    [
        (Rate(1000, per=1), 11),
        (Rate(60, per=1, burst=20), 21),
        (Rate(30, per=60, shape="window"), 30),
        (Rate(30, per=60, shape="clock"), 30),
    ],
)
def test_at_most_one_job_more_leaves_a_lane_than_may_start(stage: Stage, rate: Rate, first: int) -> None:
    """What cannot start would go back, job by job: it cost more than those that start."""
    declare(stage, {"call": [LimitRule("api", rate)]})
    put(stage, *range(200))
    out, back, started = lane_moves(stage, limit=150)
    assert (started, back) == (first, 1)
    # What it asks for: in one command, or in two of which the second brings the job that goes back.
    assert started + 1 <= out <= started + 2


def test_a_dear_job_is_looked_at_before_the_next_one_starts(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("api", Rate(30, per=60, shape="window"))]})
    came = [*put(stage, 0), *put(stage, 1, cost=28), *put(stage, 2, 3)]
    assert ids(stage.take(limit=150)) == came[:3]


def test_a_heavy_value_that_stands_back_starts_several_in_a_row(stage: Stage) -> None:
    declare(stage, {"call": [FAIR]})
    change(stage, "fair", value="x", weight=4)
    value_of = dict.fromkeys(put(stage, *(["x"] * 40)), "x") | dict.fromkeys(put(stage, *(["y"] * 10)), "y")
    taken = "".join(value_of[id] for id in ids(stage.take(limit=50)))
    # The first start leads to the grid of each, by half a turn to one and a half.
    assert taken[8:38].split("y")[1:-1] == ["xxxx"] * 5, taken


def test_a_rate_is_asked_before_each_start_also_of_a_lane_that_is_alone(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("few", Rate(3, per=100, shape="window"), Concurrency(100))]})
    came = put(stage, *range(9))
    assert ids(stage.take(limit=9)) == came[:3]
