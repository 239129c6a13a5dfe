"""limit_change.lua: an operator changes a limit, and what waits feels it at once."""

from __future__ import annotations

from headrace.model.limit_rules import Concurrency, LimitRule, Rate
from tests.scripts.limited_stage import ACCOUNT, API, change, declare, gate, look, promote, put
from tests.scripts.stage import SECOND, Stage

ONE = LimitRule("one", concurrency=Concurrency(1), by="account")


def test_a_store_that_does_not_know_the_limit_says_so(stage: Stage) -> None:
    assert change(stage, "one", Concurrency(2)) == "unknown"
    assert list(stage.client.keys("*limit*")) == []


def test_a_limit_that_only_the_caller_declares_is_stored(stage: Stage) -> None:
    assert change(stage, "one", Concurrency(2), value="x", declared=ONE) == frozenset()
    assert look(stage, "one", "x").concurrency == Concurrency(2)
    assert look(stage, "one").concurrency == Concurrency(1)


def test_a_limit_without_values_has_none(stage: Stage) -> None:
    declare(stage, {"call": [API]})
    assert change(stage, "api", Concurrency(2), value="x") == "shared"


def test_it_says_what_there_was(stage: Stage) -> None:
    declare(stage, {"call": [API]})
    assert change(stage, "api", paused=True) == frozenset()
    assert change(stage, "api", Concurrency(2)) == {"paused"}
    assert change(stage, "api", gone=["paused", "concurrency"]) == {"paused", "concurrency"}
    assert change(stage, "api", gone=["paused"]) == frozenset()


def test_a_higher_number_lets_what_waits_start_without_a_job_that_ends(stage: Stage) -> None:
    declare(stage, {"call": [API]})
    put(stage, *range(9))
    assert len(stage.take(limit=50)) == 2
    stage.doze()
    change(stage, "api", Concurrency(5))
    assert stage.tokens() == 1
    promote(stage)
    assert len(stage.take(limit=50)) == 3
    change(stage, "api", Concurrency(1))
    assert stage.take(limit=50) == []


def test_a_higher_number_of_one_value_opens_its_gate_only(stage: Stage) -> None:
    declare(stage, {"call": [ONE]})
    put(stage, *["x"] * 5, *["y"] * 5)
    assert len(stage.take(limit=50)) == 2
    stage.doze()
    change(stage, "one", Concurrency(3), value="x")
    assert stage.tokens() == 1
    assert len(stage.take(limit=50)) == 2
    assert gate(stage, "one:x")[1] == 3
    assert gate(stage, "one:y")[1] == 1


def test_no_job_of_a_paused_limit_starts_until_it_is_resumed(stage: Stage) -> None:
    declare(stage, {"call": [API]})
    put(stage, 1, 2)
    change(stage, "api", paused=True)
    assert stage.take(limit=50) == []
    assert stage.names("behind:api:") == {"default|api"}
    stage.doze()
    change(stage, "api", gone=["paused"])
    assert stage.tokens() == 1
    assert len(stage.take(limit=50)) == 2


def test_a_pause_of_all_values_parks_their_class_and_not_each_of_them(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    put(stage, *range(300))
    change(stage, "account", paused=True)
    assert stage.take(limit=50) == []
    assert stage.names("behind:account:*") == {"default|account="}
    assert not stage.client.exists(stage.keys("behind:account:1"))
    stage.doze()
    (new,) = put(stage, "new")
    assert stage.tokens() == 0
    change(stage, "account", gone=["paused"])
    assert len(stage.take(limit=500)) == 301
    assert stage.state(new) == "running"


def test_a_pause_ends_by_itself(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    put(stage, "x", "y")
    change(stage, "account", paused=True, duration=100 * SECOND)
    change(stage, "account", paused=True, value="y", duration=50 * SECOND)
    promote(stage)
    assert stage.take(limit=50) == []
    assert stage.claim().due == stage.now + 50 * SECOND
    stage.now += 50 * SECOND
    promote(stage)
    assert stage.take(limit=50) == []
    stage.now += 50 * SECOND
    promote(stage)
    assert len(stage.take(limit=50)) == 2


def test_a_paused_value_does_not_hold_up_others(stage: Stage) -> None:
    declare(stage, {"call": [ONE]})
    change(stage, "one", paused=True, value="x")
    put(stage, *["x"] * 5, "y")
    assert len(stage.take(limit=50)) == 1
    change(stage, "one", gone=["paused"], value="x")
    assert len(stage.take(limit=50)) == 1


def test_a_slower_rate_counts_from_the_next_start(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("api", Rate(10, per=1))]})
    put(stage, 1, 2, 3)
    assert len(stage.take(limit=50)) == 1
    change(stage, "api", Rate(1, per=1000))
    stage.now += SECOND
    promote(stage)
    assert len(stage.take(limit=50)) == 1
    stage.now += SECOND
    promote(stage)
    assert stage.take(limit=50) == []
