"""held_gates.lua: a start that runs closes its gates, spends more of them, or holds them again."""

from __future__ import annotations

import pytest

from headrace.model.job import Claim
from headrace.model.limit_rules import Concurrency, LimitRule, Rate
from headrace.protocol import consume, produce
from headrace.protocol.consume import Note
from tests.scripts.limited_stage import declare, gate, ids, promote, put
from tests.scripts.stage import KEEP, SECOND, Stage


def test_a_start_that_the_store_forgot_holds_its_gates_again(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(1))]})
    first, second = put(stage, 1, 2)
    answer = stage.run(consume.restore(stage.keys, "w1", [(first, stage.now)]))
    assert (answer.others, answer.gone) == ([], [])
    assert gate(stage, "one:")[1] == 1
    assert stage.take(limit=10) == []
    stage.settle(stage.outcome(type("C", (), {"id": first, "token": stage.now})()))  # type: ignore[arg-type]
    assert ids(stage.take(limit=10)) == [second]


def refused(stage: Stage, claim: Claim, delay: int = 0, limit: str = "account") -> None:
    stage.settle(stage.outcome(claim, "limited", limit.encode(), delay), ready=claim.score)


def test_a_refused_call_closes_the_gate_and_its_job_is_first_when_it_opens(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("account", by="account")]})
    first, second = put(stage, "x", "x")
    (other,) = put(stage, "y")
    (claim,) = stage.take(limit=1)
    refused(stage, claim, 30 * SECOND)
    assert ids(stage.take(limit=10)) == [other]
    assert (stage.state(first), stage.record(first)["limited"]) == ("ready", b"1")
    assert stage.claim().due == stage.now + 30 * SECOND
    stage.now += 30 * SECOND
    promote(stage)
    again, other_x = stage.take(limit=10)
    assert (again.id, again.limited, again.failures, again.attempt) == (first, 1, 0, 2)
    assert other_x.id == second


def test_refusals_in_a_row_close_the_gate_for_twice_as_long_until_one_succeeds(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("account", by="account")]})
    put(stage, *["x"] * 2)
    waits: list[int] = []
    for _ in range(11):
        (claim, mate) = stage.take(limit=10)
        refused(stage, claim)
        # Its mate ran beside it: no reason to wait for longer.
        refused(stage, mate)
        waits.append((stage.claim().due - stage.now) // SECOND)
        stage.now += waits[-1] * SECOND
        promote(stage)
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    claim, mate = stage.take(limit=10)
    stage.end(claim, amount=0)
    refused(stage, mate)
    assert stage.claim().due - stage.now == SECOND


def test_a_success_that_began_before_the_refusal_says_nothing(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("account", by="account")]})
    put(stage, "x", "x", "x")
    first, second, third = stage.take(limit=10)
    refused(stage, first)
    stage.end(second, amount=0)
    stage.now += SECOND
    promote(stage)
    refused(stage, third)
    assert stage.claim().due - stage.now == 2 * SECOND


def test_a_job_without_the_limit_that_it_names_waits_alone(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("account", by="account")]})
    put(stage, "x", "x")
    claim, _ = stage.take(limit=10)
    refused(stage, claim, 5 * SECOND, "gone")
    assert stage.state(claim.id) == "scheduled"
    assert stage.client.zscore(stage.keys("scheduled"), claim.id) == stage.now + 5 * SECOND


def test_a_job_that_was_cancelled_while_its_call_was_refused_ends(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("account", by="account")]})
    put(stage, "x")
    (claim,) = stage.take(limit=10)
    stage.run(produce.cancel(stage.keys, claim.id, KEEP))
    refused(stage, claim)
    assert stage.state(claim.id) == "cancelled"


@pytest.mark.parametrize("units", [4, -2])
def test_what_a_start_spends_counts(stage: Stage, units: int) -> None:
    declare(stage, {"call": [LimitRule("slow", Rate(10, per=1000))]})
    put(stage, 1, cost=3)
    (claim,) = stage.take(limit=10)
    assert gate(stage, "slow:")[0] == stage.now + 290 * SECOND
    # A repeat, or another limit, counts nothing.
    for limit, request in (("slow", 5), ("slow", 5), ("other", 6)):
        said = Note(claim.id, claim.token, spent=((limit, units),))
        stage.run(consume.note(stage.keys, "w1", [said], request=request))
    assert gate(stage, "slow:")[0] == stage.now + (290 + 100 * units) * SECOND


def test_workers_that_hold_limited_jobs_hear_of_a_gate_that_a_refused_call_closes(stage: Stage) -> None:
    calls = LimitRule("calls", by="account")
    for owner in ("w1", "holds", "idle"):
        declare(stage, {"call": [calls]}, owner)
    put(stage, *["x"] * 4)
    mine, other = stage.take("w1", 2), stage.take("holds", 1)
    boxes = {name: stage.subscribe(stage.keys.mail(name)) for name in ("w1", "holds", "idle")}
    news = f"closed:{other[0].token}:calls:x"
    for claim in mine:
        stage.settle(stage.outcome(claim, "limited", b"calls", SECOND))
    for name, box in boxes.items():
        stage.client.publish(stage.keys.mail(name), "the end")
        # Once: the second refusal finds it closed. The first one's worker holds another job of the gate by then.
        wanted = [b"the end"] if name == "idle" else [news.encode(), b"the end"]
        assert [box.get_message(timeout=20)["data"] for _ in wanted] == wanted
