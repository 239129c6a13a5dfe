"""limit_hold.lua: a program passes a gate as a job would."""

from __future__ import annotations

from headrace.model.limit_rules import Concurrency, LimitRule, Rate
from headrace.protocol.limit_verbs import hold_limit
from tests.scripts.limited_stage import ACCOUNT, API, change, declare, gate, hold, look, promote, put
from tests.scripts.stage import SECOND, Stage

ONE = LimitRule("one", concurrency=Concurrency(1))


def test_a_program_counts_as_a_job(stage: Stage) -> None:
    declare(stage, {"call": [API]})
    put(stage, 1, 2, 3)
    assert hold(stage, "api").word == "held"
    assert len(stage.take(limit=10)) == 1
    assert look(stage, "api").held == 2
    assert hold(stage, "api", holder="b").word == "closed"


def test_the_same_hold_again_is_one(stage: Stage) -> None:
    declare(stage, {"call": [API]})
    assert [hold(stage, "api").word for _ in range(3)] == ["held"] * 3
    assert gate(stage, "api:")[1] == 1


def test_a_rate_tells_when_it_opens(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("slow", Rate(1, per=100))]})
    assert hold(stage, "slow").word == "held"
    answer = hold(stage, "slow", holder="b")
    assert (answer.word, answer.now, answer.opens) == ("closed", stage.now, stage.now + 99 * SECOND)


def test_a_hold_ends_with_its_lease_and_what_waits_starts(stage: Stage) -> None:
    declare(stage, {"call": [ONE]})
    hold(stage, "one", lease=15 * SECOND)
    put(stage, 1)
    assert stage.take(limit=10) == []
    stage.now += 15 * SECOND
    promote(stage)
    assert len(stage.take(limit=10)) == 1


def test_a_hold_ends_with_its_lease_also_where_no_worker_looks(stage: Stage) -> None:
    declare(stage, {"call": [ONE]})
    hold(stage, "one", lease=15 * SECOND)
    stage.now += 15 * SECOND
    assert hold(stage, "one", holder="b").word == "held"


def test_a_pause_closes_it_for_programs_too(stage: Stage) -> None:
    declare(stage, {"call": [API, ACCOUNT]})
    change(stage, "account", paused=True, duration=9 * SECOND)
    assert hold(stage, "account", value="x").opens == stage.now + 9 * SECOND
    change(stage, "api", paused=True)
    assert hold(stage, "api").word == "closed"


def test_a_limit_that_only_the_program_declares_is_stored(stage: Stage) -> None:
    assert stage.run(hold_limit(stage.keys, "one", "*", "a", SECOND, [])).word == "unknown"
    assert stage.run(hold_limit(stage.keys, "one", "*", "a", SECOND, ONE.fields)).word == "held"
    assert look(stage, "one").held == 1


def test_a_value_is_needed_where_the_limit_goes_by_one(stage: Stage) -> None:
    declare(stage, {"call": [API, ACCOUNT]})
    assert hold(stage, "account").word == "values"
    assert hold(stage, "api", value="x").word == "shared"
