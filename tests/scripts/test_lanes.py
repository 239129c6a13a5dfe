"""lanes.lua: where limited jobs wait, and how they get on."""

from __future__ import annotations

from headrace.model.limit_rules import Concurrency, LimitRule
from headrace.protocol import operations, overviews, produce
from tests.scripts.limited_stage import ACCOUNT, API, change, declare, gate, ids, promote, put
from tests.scripts.stage import SECOND, Stage


def test_jobs_of_one_value_wait_in_a_lane_and_their_class_stands_in_the_line(stage: Stage) -> None:
    declare(stage, {"call": [API, ACCOUNT]})
    one, two, three = put(stage, "x", "y", "x")
    assert stage.ready() == ["~api,account="]
    assert list(stage.members("lane:default|api,account=|x")) == [one, three]
    assert list(stage.members("lane:default|api,account=|y")) == [two]
    assert stage.run(overviews.overview(stage.keys, stage.now)).states["ready"] == 3
    assert stage.tokens() == 1


def test_what_waits_for_its_own_gate_does_not_hide_other_values(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    first, *_ = put(stage, *["x"] * 500)
    assert ids(stage.take(limit=10)) == [first]
    stage.now += 1
    (other,) = put(stage, "y")
    assert ids(stage.take(limit=10)) == [other]


def test_a_class_whose_gate_is_closed_is_parked_as_a_whole(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(1)), LimitRule("fair", by="account")]})
    put(stage, *range(100))
    (claim,) = stage.take(limit=50)
    assert stage.names("behind:one:") == {"default|one,fair="}
    assert stage.ready() == []
    stage.doze()
    put(stage, "new")
    assert stage.tokens() == 0
    stage.end(claim, amount=0)
    assert stage.tokens() == 1
    assert len(stage.take(limit=50)) == 1


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


def test_cancelled_and_purged_jobs_leave_their_lanes(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    one, *_ = put(stage, "x", "x", "y")
    assert stage.run(produce.cancel(stage.keys, one, 0, stage.now)) == "cancelled"
    assert stage.run(operations.purge(stage.keys, "default", 1000, stage.now)) == (2, 0)
    for name in ("lane:default|account=|x", "class:default|account=", "classes:default", "ready:default"):
        assert not stage.client.exists(stage.keys(name)), name


def test_ordered_jobs_go_to_their_lanes_when_it_is_their_turn(stage: Stage) -> None:
    declare(stage, {"call": [API]})
    first, second = put(stage, 1, 2, key="k", ordered=True)
    (claim,) = stage.take(limit=10)
    assert claim.id == first
    stage.end(claim, amount=0)
    assert stage.record(second)["lane"] == b"default|api|"
    assert ids(stage.take(limit=10)) == [second]


def test_numbers_that_changed_count_at_once_for_what_waits(stage: Stage) -> None:
    def with_most(n: int) -> None:
        declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(n), by="account")]})

    with_most(1)
    put(stage, "x", "x", "y", "y")
    assert len(stage.take(limit=10)) == 2
    stage.doze()
    with_most(2)
    assert stage.tokens() == 1
    promote(stage)
    assert len(stage.take(limit=10)) == 2
    assert gate(stage, "one:x")[1] == 2


def test_a_broadcast_is_not_limited(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(1))]})
    put(stage, 1)
    assert len(stage.take(limit=10)) == 1
    (form,) = [stage.job(task="call").form]
    stage.run(produce.broadcast(stage.keys, form, b"\x92\x90\x80", [("w1", "0" * 22)], stage.now))
    assert ids(stage.take(limit=10, queues=["@w1"])) == ["0" * 22]


def test_a_queue_is_known_though_all_its_jobs_wait_for_a_closed_gate(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    change(stage, "account", paused=True)
    put(stage, "x", queue="new")
    seen = stage.run(overviews.overview(stage.keys, stage.now))
    assert ("new", 1) in [(queue.name, queue.size) for queue in seen.queues]
    assert seen.states["ready"] == 1
