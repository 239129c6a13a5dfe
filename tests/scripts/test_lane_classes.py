"""lane_classes.lua: which gates the jobs of a lane pass."""

from __future__ import annotations

from headrace.model.limit_rules import Concurrency, LimitRule
from tests.scripts.limited_stage import ACCOUNT, change, declare, gate, ids, promote, put
from tests.scripts.stage import SECOND, Stage


def test_what_waits_for_its_own_gate_does_not_hide_other_values(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    first, *_ = put(stage, *["x"] * 500)
    assert ids(stage.take(limit=10)) == [first]
    stage.now += 1
    (other,) = put(stage, "y")
    assert ids(stage.take(limit=10)) == [other]


def test_a_lane_has_a_gate_for_each_of_its_values_and_for_the_limits_without(stage: Stage) -> None:
    account = LimitRule("account", concurrency=Concurrency(1), by="account")
    number = LimitRule("number", concurrency=Concurrency(2), by="n")
    declare(stage, {"call": [account, LimitRule("all", concurrency=Concurrency(3)), number]})
    put(stage, "x", "y", "z")
    assert len(stage.take(limit=10)) == 2
    assert [gate(stage, name)[1:] for name in ("all:", "account:x", "account:y")] == [
        (2, False),
        (1, False),
        (1, False),
    ]
    assert gate(stage, "number:")[1:] == (2, True)


def test_a_pause_of_all_values_closes_the_class(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    came = put(stage, "x", "y")
    change(stage, "account", paused=True)
    assert stage.take(limit=10) == []
    assert stage.names("behind:account:*") == {"default|account="}
    change(stage, "account", gone=["paused"])
    assert ids(stage.take(limit=10)) == came


FAIR = LimitRule("fair", by="account")


def test_a_class_stands_in_its_line_as_old_as_the_job_whose_turn_it_is(stage: Stage) -> None:
    declare(stage, {"call": [FAIR]})
    begun = stage.now
    put(stage, "x")
    stage.now += 1000
    put(stage, "y")
    assert stage.members("ready:default") == {"~fair=": begun}
    stage.take(limit=1)
    assert begun < stage.members("ready:default")["~fair="] <= stage.now


def test_the_jobs_that_wait_are_counted_until_the_last_one_has_left(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    first, *_ = put(stage, "x", "x", "y")
    counts = stage.keys("classes:default")
    assert stage.client.hget(counts, "account=") == b"3"
    taken = stage.take(limit=10)
    assert first in ids(taken)
    assert stage.client.hget(counts, "account=") == b"1"
    assert stage.names("waiting:account") == {"default|account="}
    for claim in taken:
        stage.end(claim, amount=0)
    stage.now += 200 * SECOND
    promote(stage)
    assert len(stage.take(limit=10)) == 1
    assert not stage.client.exists(counts)
    assert not stage.client.exists(stage.keys("waiting:account"))
