from __future__ import annotations

import msgspec
import pytest

from headrace.model.unique_rules import UniqueRule
from headrace.protocol import consume, produce
from tests.scripts.stage import KEEP, SECOND, Stage
from tests.scripts.unique_stage import holder, one, only, put

STARTING = UniqueRule("n", "start")


def test_a_start_frees_the_name(stage: Stage) -> None:
    first = one(stage, STARTING)
    assert put(stage, STARTING)[1].duplicates
    assert [claim.id for claim in stage.take()] == [first]
    assert holder(stage) is None
    second = one(stage, STARTING)
    assert holder(stage) == second


@pytest.mark.parametrize("kind", ["retry", "snoozed", "crashed", "released", "interrupted"])
def test_a_job_that_has_started_never_takes_the_name_again(stage: Stage, kind: str) -> None:
    first = one(stage, STARTING)
    stage.end(only(stage), kind, b"{}", 0)
    assert stage.state(first) == "ready"
    assert holder(stage) is None
    second = one(stage, STARTING)
    assert {claim.id for claim in stage.take()} == {first, second}
    assert holder(stage) is None


def test_the_end_of_a_job_that_has_started_does_not_free_the_name_of_the_next(stage: Stage) -> None:
    one(stage, STARTING)
    (claim,) = stage.take()
    second = one(stage, STARTING)
    stage.end(claim)
    assert holder(stage) == second


def test_a_job_that_never_started_frees_its_name(stage: Stage) -> None:
    first = one(stage, STARTING, delay=SECOND)
    stage.run(produce.cancel(stage.keys, first, KEEP))
    assert holder(stage) is None


def test_a_start_that_the_store_forgot_has_freed_the_name(stage: Stage) -> None:
    first = one(stage, STARTING)
    stage.register()
    stage.run(consume.restore(stage.keys, "w1", [(first, stage.now)]))
    assert stage.state(first) == "running"
    assert holder(stage) is None


def test_a_limited_job_frees_its_name_at_its_start(stage: Stage) -> None:
    stage.client.hset(stage.keys("limited"), "task:add", msgspec.msgpack.encode([["l", "", 0, ""]]))
    stage.client.hset(stage.keys("limit:l"), "most", 1)
    stage.client.zadd(stage.keys("limits"), {"l": 0})
    stage.register()
    first, second = one(stage, STARTING), one(stage, UniqueRule("m", "start"))
    assert [claim.id for claim in stage.take()] == [first]
    assert [holder(stage), holder(stage, "m")] == [None, second]
