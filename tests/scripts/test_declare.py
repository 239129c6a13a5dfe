"""declare.lua: which limits the store knows."""

from __future__ import annotations

from tests.scripts.limited_stage import ACCOUNT, API, declare, put
from tests.scripts.stage import Stage


def test_a_worker_without_limits_in_a_store_without_any_writes_nothing(stage: Stage) -> None:
    stage.register(tasks={"call": "process"})
    assert not stage.client.exists(stage.keys("limited"))
    assert b"limits" not in stage.client.hgetall(stage.keys("owner:w1"))


def test_a_task_whose_code_has_no_limits_any_more_is_not_limited(stage: Stage) -> None:
    declare(stage, {"call": [API], "other": [API]})
    declare(stage, {"call": []}, "w2")
    assert list(stage.client.hgetall(stage.keys("limited"))) == [b"task:other"]
    put(stage, 1)
    assert len(stage.ready()) == 1
    assert stage.ready()[0] != "~api"


def test_the_numbers_of_the_last_worker_count(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    assert stage.client.hgetall(stage.keys("limit:account")) == {
        b"rate": b"1", b"per": b"100000000", b"most": b"1", b"by": b"account",
    }  # fmt: skip
    declare(stage, {"call": [API]}, "w2")
    assert stage.client.hgetall(stage.keys("limit:api")) == {b"most": b"2"}


def test_each_live_worker_looks_from_then_on(stage: Stage) -> None:
    stage.register("w2")
    declare(stage, {"call": [API]})
    assert stage.client.hget(stage.keys("owner:w2"), "limits") == b"1"
