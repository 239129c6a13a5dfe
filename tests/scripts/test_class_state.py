"""class_state.lua: how many jobs wait in a class, and where it stands in its line."""

from __future__ import annotations

from headrace.model.limit_rules import LimitRule
from tests.scripts.limited_stage import ACCOUNT, declare, ids, promote, put
from tests.scripts.stage import SECOND, Stage

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
