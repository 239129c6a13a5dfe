"""limit_read.lua: how limits and their values stand."""

from __future__ import annotations

from headrace.model.limit_rules import Concurrency, LimitRule, Rate
from headrace.protocol.limit_verbs import read_limits
from tests.scripts.limited_stage import ACCOUNT, API, change, declare, look, put
from tests.scripts.stage import SECOND, Stage


def test_a_page_tells_each_limit_by_its_name(stage: Stage) -> None:
    declare(stage, {"call": [API, ACCOUNT], "other": [LimitRule("zero", by="account")]})
    put(stage, "x", "x", "y")
    page = stage.run(read_limits(stage.keys, limit=2))
    assert page.count == 3
    assert [(one.name, one.waiting, one.held, one.free) for one in page.rows] == [
        ("account", 3, None, None), ("api", 3, 0, 2),
    ]  # fmt: skip
    rest = stage.run(read_limits(stage.keys, after="api")).rows
    assert [(one.name, one.by, one.concurrency) for one in rest] == [("zero", "account", None)]


def test_a_value_tells_what_it_holds_and_when_it_opens(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("slow", Rate(1, per=100), Concurrency(3), by="account")]})
    put(stage, "x", "x", "x")
    assert look(stage, "slow", "x").free == 3
    stage.take(limit=50)
    state = look(stage, "slow", "x")
    assert (state.held, state.waiting, state.free) == (1, 2, 0)
    assert state.opens == stage.now + 99 * SECOND
    assert look(stage, "slow", "y").opens == 0


def test_it_tells_of_values_whose_jobs_wait_or_that_an_operator_changed(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT, LimitRule("other", by="n")]})
    put(stage, "x", "x", "a b")
    change(stage, "account", weight=2, value="z")
    page = stage.run(read_limits(stage.keys, ["account"], values=True))
    assert {(one.value, one.waiting, one.weight) for one in page.rows} == {
        (None, 3, 1), ("x", 2, 1), ("a b", 1, 1), ("z", 0, 2),
    }  # fmt: skip
    assert page.limited == {"task:call": ("account", "other")}


def test_a_limit_whose_waiting_values_are_all_closed_does_not_start_now(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("slow", Rate(1, per=100), by="account")], "one": [ACCOUNT]})
    put(stage, "x", "x", "y", "y")
    assert look(stage, "slow").opens == 0
    stage.take(limit=50)
    assert look(stage, "slow").opens == stage.now + 99 * SECOND
    stage.now += 10 * SECOND
    put(stage, "z", "z")
    assert look(stage, "slow").opens == 0
    stage.take(limit=50)
    assert look(stage, "slow").opens == stage.now + 89 * SECOND
    put(stage, "x", "x", task="one")
    stage.take(limit=50)
    assert look(stage, "account").opens is None


def test_a_field_of_another_version_hides_no_limit(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    stage.client.hset(stage.keys("limited"), mapping={"back": 1, "later:x": b"\xc1"})
    page = stage.run(read_limits(stage.keys, ["account"], values=True))
    assert page.limited == {"task:call": ("account",)}


def test_a_value_of_a_paused_limit_is_paused(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    change(stage, "account", paused=True, duration=5 * SECOND)
    state = look(stage, "account", "x")
    assert state.paused
    assert (state.until, state.opens) == (stage.now + 5 * SECOND, stage.now + 5 * SECOND)
    change(stage, "account", paused=True, value="x")
    assert look(stage, "account", "x").opens is None
    assert look(stage, "account", "x").until == 0


def test_it_stores_nothing(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    put(stage, *range(50))
    before = {key: stage.client.dump(key) for key in stage.client.keys("*")}
    stage.run(read_limits(stage.keys, ["account"], values=True))
    assert {key: stage.client.dump(key) for key in stage.client.keys("*")} == before
