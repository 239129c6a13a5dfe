"""lane_entry.lua: limited jobs that become ready go to their lanes."""

from __future__ import annotations

import pytest

from headrace.model.limit_rules import Concurrency, Full, LimitRule
from headrace.protocol import overviews, produce
from headrace.worker.messages import LEFT_OUT, before_start
from tests.scripts.limited_stage import ACCOUNT, API, declare, gate, ids, promote, put
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


def full(policy: Full, n: int = 1) -> LimitRule:
    return LimitRule("one", concurrency=Concurrency(n), by="account", full=policy)


def left_out(stage: Stage) -> list[str]:
    """Ids of jobs that a worker is to settle as cancelled: it gets them as any other, and starts none."""
    found = [claim for claim in stage.take(limit=100) if claim.expires == LEFT_OUT]
    for claim in found:
        ended = before_start(claim, stage.now, 0)
        assert ended is not None
        assert ended.kind == "cancelled"
        stage.end(claim, "cancelled", b"{}")
        assert stage.state(claim.id) == "cancelled"
    return [claim.id for claim in found]


def test_new_jobs_are_left_out_while_as_many_run_or_wait_as_may(stage: Stage) -> None:
    declare(stage, {"call": [full("cancel_new", 2)]})
    one, two, three = put(stage, "x", "x", "x")
    (other,) = put(stage, "y")
    assert left_out(stage) == [three]
    assert {stage.state(id) for id in (one, two, other)} == {"running"}
    four, five = put(stage, "x", "y")
    assert left_out(stage) == [four]
    assert stage.state(five) == "running"


def test_the_oldest_running_jobs_are_asked_to_stop(stage: Stage) -> None:
    declare(stage, {"call": [full("cancel_running", 2)]})
    one, two = put(stage, "x", "x")
    first, second = stage.take(limit=100)
    put(stage, "y")
    (three,) = put(stage, "x")
    assert stage.names("cancels:w1") == {one}
    (four,) = put(stage, "x")
    assert stage.names("cancels:w1") == {one, two}
    (five,) = put(stage, "x")
    assert left_out(stage) == [three]
    for claim in (first, second):
        stage.end(claim, "cancelled", b"{}")
    assert set(ids(stage.take(limit=100))) >= {four, five}
    assert gate(stage, "one:x")[1] == 2


def test_of_those_that_wait_the_newest_stays(stage: Stage) -> None:
    declare(stage, {"call": [full("keep_newest")]})
    one, two, three = put(stage, "x", "x", "x")
    assert left_out(stage) == [one]
    (four,) = put(stage, "x")
    assert left_out(stage) == [three]
    assert stage.state(two) == "running"
    assert stage.state(four) == "ready"


def test_a_limit_without_values_has_one_lane(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(1), full="cancel_new")]})
    put(stage, 1, 2, 3)
    assert len(left_out(stage)) == 2


@pytest.mark.parametrize("policy", ["cancel_new", "keep_newest"])
def test_one_that_is_retried_afterwards_is_a_job_as_any_other(stage: Stage, policy: Full) -> None:
    declare(stage, {"call": [full(policy)]})
    put(stage, "x", "x", "x")
    (id,) = left_out(stage)[:1]
    for claim in stage.take(limit=10):
        stage.end(claim)
    stage.run(produce.rerun(stage.keys, id, "r"))
    assert stage.state(id) == "ready"
    assert stage.record(id)["lane"] == b"default|one=|x"


def test_a_delayed_job_comes_when_it_is_due(stage: Stage) -> None:
    declare(stage, {"call": [full("cancel_new")]})
    put(stage, "x")
    (late,) = put(stage, "x", delay=SECOND)
    assert left_out(stage) == []
    stage.now += SECOND
    promote(stage)
    assert left_out(stage) == [late]
