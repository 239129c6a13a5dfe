"""serve.lua: the order between limited jobs and others, and what a claim tells of them."""

from __future__ import annotations

from itertools import pairwise

from headrace.model.limit_rules import Concurrency, LimitRule
from headrace.protocol import consume
from tests.scripts.limited_stage import ACCOUNT, API, declare, ids, put
from tests.scripts.stage import LARGE, Stage

FAIR = LimitRule("fair", by="account")


def test_priority_counts_within_a_lane(stage: Stage) -> None:
    declare(stage, {"call": [FAIR]})
    low, other = put(stage, "x", "y")
    (high,) = put(stage, "x", priority=5)
    assert ids(stage.take(limit=1)) == [high]
    assert set(ids(stage.take(limit=2))) == {low, other}


def test_limited_jobs_and_others_start_in_the_order_in_which_they_came(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("many", concurrency=Concurrency(100))]})
    came: list[str] = []
    for n in range(12):
        came += put(stage, n, task="call" if n % 3 else "plain")
        stage.now += 1
    assert ids(stage.take(limit=7)) == came[:7]
    assert ids(stage.take(limit=7)) == came[7:]


def test_a_backlog_of_others_does_not_hold_up_old_jobs_behind_a_new_value(stage: Stage) -> None:
    declare(stage, {"call": [FAIR]})
    old = put(stage, *["x"] * 10)
    for _ in range(100):
        stage.now += 1000
        put(stage, 1, task="plain")
    (new,) = put(stage, "y")
    first = ids(stage.take(limit=55))
    assert new in first
    assert 4 <= len(set(first) & set(old)) <= 10


def test_a_kind_without_room_leaves_limited_jobs_where_they_are(stage: Stage) -> None:
    declare(stage, {"call": [API]})
    (id,) = put(stage, 1)
    (other,) = put(stage, 1, task="plain")
    call = consume.claim(stage.keys, "w1", stage.next(), 10, ["default"], passing=[("process", 0, ["call"])]).at(
        stage.now
    )
    assert ids(stage.run(call).jobs) == [other]
    assert stage.client.exists(stage.keys.wake("default|process"))
    assert ids(stage.take(limit=10)) == [id]


def test_a_job_whose_time_is_over_takes_no_permit(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    dead = put(stage, *["x"] * 3, expires=5)
    stage.now += 10
    (live,) = put(stage, "x")
    assert ids(stage.take(limit=10)) == [*dead, live]


def test_a_claim_whose_reply_was_lost_answers_alike(stage: Stage) -> None:
    declare(stage, {"call": [API]})
    put(stage, 1, 2, 3)
    first = stage.claim(request=1_000)
    assert ids(stage.claim(request=1_000).jobs) == ids(first.jobs)
    assert len(first.jobs) == 2


def test_a_job_without_a_record_takes_no_permit(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    lost, found = put(stage, "x", "x")
    stage.client.delete(stage.keys.job(lost))
    answer = stage.claim()
    assert (answer.lost, ids(answer.jobs)) == ([lost], [found])


def test_a_claim_moves_so_many_jobs_to_their_lanes_that_came_before_their_limit(stage: Stage) -> None:
    """Where the gate is closed nothing fills the claim: it would move a million."""
    waiting = [put(stage, *range(500)) for _ in range(6)]
    declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(1))]})
    left: list[int] = []
    for _ in range(12):
        stage.take(limit=10)
        left.append(len([id for id in stage.ready() if id[0] != "~"]))
        assert left[-1] == 0 or stage.tokens() == 1, "the next claim goes on"
    assert len(waiting) * 500 - left[0] <= 510
    assert all(before - after <= 510 for before, after in pairwise(left))
    assert left[-1] == 0


def test_a_claim_tells_the_lane_of_each_limited_job_also_when_its_reply_was_lost(stage: Stage) -> None:
    declare(stage, {"call": [API, ACCOUNT]})
    limited, plain = put(stage, "x", task="call", key="k"), put(stage, "x", task="plain")
    lanes = {limited[0]: "default|api,account=|x", plain[0]: ""}
    for _ in range(2):
        assert {claim.id: claim.lane for claim in stage.claim(limit=9, request=7).jobs} == lanes


def test_large_jobs_of_a_lane_are_left_for_the_next_claim(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("many", concurrency=Concurrency(100), by="account")]})
    large = stage.put(5, task="call", args=LARGE)
    stage.now += 1
    (plain,) = stage.put(task="plain")
    stage.doze()
    assert ids(stage.take()) == large[:3]
    assert stage.tokens() == 1
    assert ids(stage.take()) == [*large[3:], plain]
