"""lane_entry.lua: limited jobs that become ready go to their lanes."""

from __future__ import annotations

from headrace.model.limit_rules import Concurrency, LimitRule
from headrace.protocol import overviews, produce
from tests.scripts.limited_stage import ACCOUNT, API, declare, ids, promote, put
from tests.scripts.stage import SECOND, Stage


def test_jobs_of_one_value_wait_in_a_lane_and_their_class_stands_in_the_line(stage: Stage) -> None:
    declare(stage, {"call": [API, ACCOUNT]})
    one, two, three = put(stage, "x", "y", "x")
    assert stage.ready() == ["~api,account="]
    assert list(stage.members("lane:default|api,account=|x")) == [one, three]
    assert list(stage.members("lane:default|api,account=|y")) == [two]
    assert stage.run(overviews.overview(stage.keys)).states["ready"] == 3
    assert stage.tokens() == 1


def test_a_job_that_was_enqueued_before_its_limit_goes_to_its_lane_when_a_claim_meets_it(stage: Stage) -> None:
    waiting = put(stage, "x", "x", "y")
    declare(stage, {"call": [ACCOUNT]})
    assert stage.ready() == waiting
    assert stage.take(limit=10) == []
    assert stage.tokens() == 1
    assert ids(stage.take(limit=10)) == [waiting[0], waiting[2]]


def test_a_retry_waits_in_its_lane_and_holds_nothing_meanwhile(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(1), by="account")]})
    first, second = put(stage, "x", "x")
    (claim,) = stage.take(limit=10)
    stage.end(claim, "retry", b"{}", SECOND)
    assert ids(stage.take(limit=10)) == [second]
    stage.now += SECOND
    promote(stage)
    assert stage.state(first) == "ready"
    assert stage.take(limit=10) == []


def test_ordered_jobs_go_to_their_lanes_when_it_is_their_turn(stage: Stage) -> None:
    declare(stage, {"call": [API]})
    first, second = put(stage, 1, 2, key="k", ordered=True)
    (claim,) = stage.take(limit=10)
    assert claim.id == first
    stage.end(claim, amount=0)
    assert stage.record(second)["lane"] == b"default|api|"
    assert ids(stage.take(limit=10)) == [second]


def test_a_broadcast_is_not_limited(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(1))]})
    put(stage, 1)
    assert len(stage.take(limit=10)) == 1
    (form,) = [stage.job(task="call").form]
    stage.run(produce.broadcast(stage.keys, form, b"\x92\x90\x80", [("w1", "0" * 21)]))
    assert ids(stage.take(limit=10, queues=["@w1"])) == ["0" * 21]
