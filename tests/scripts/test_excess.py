"""excess.lua: what becomes of jobs that come while their limit is full."""

from __future__ import annotations

import pytest

from headrace.model.limit_rules import Concurrency, Full, LimitRule
from headrace.protocol import produce
from headrace.worker.messages import LEFT_OUT, before_start
from tests.scripts.limited_stage import declare, gate, ids, promote, put
from tests.scripts.stage import SECOND, Stage


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
