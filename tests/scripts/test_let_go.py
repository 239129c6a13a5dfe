"""let_go.lua: a start holds its gates exactly as long as it is claimed."""

from __future__ import annotations

import pytest

from headrace.model.job import Claim
from headrace.model.limit_rules import Concurrency, LimitRule
from headrace.model.rates import Rate
from headrace.protocol import consume, produce, settle_calls
from headrace.protocol.consume import Note
from tests.scripts.limited_stage import ACCOUNT, API, LEASE, declare, gate, ids, promote, put
from tests.scripts.stage import KEEP, SECOND, Stage

ONE = LimitRule("one", concurrency=Concurrency(1))


def test_a_late_end_releases_nothing_twice(stage: Stage) -> None:
    declare(stage, {"call": [ONE]})
    put(stage, 1, 2, 3)
    (claim,) = stage.take("w1", 10)
    assert stage.run(consume.reclaim(stage.keys, "w1", True, 500, 0, stage.now)) == ("done", 1)
    (again,) = stage.take("w2", 10)
    declare(stage, {"call": [ONE]}, "w1")
    assert stage.settle(stage.outcome(claim)).stale == [claim.id]
    assert gate(stage, "one:")[1] == 1
    assert stage.take("w3", 10) == []
    stage.end_as("w2", again)
    assert len(stage.take("w3", 10)) == 1


def test_a_dead_worker_gives_its_slots_back(stage: Stage) -> None:
    declare(stage, {"call": [API]})
    put(stage, *range(4))
    assert len(stage.take("w2", 10)) == 2
    stage.doze()
    stage.run(consume.reclaim(stage.keys, "w2", True, 500, 0, stage.now))
    assert stage.tokens() == 1
    assert gate(stage, "api:")[1] == 0
    assert not stage.client.exists(stage.keys("slots:w2"))
    assert len(stage.take("w1", 10)) == 2


def test_a_start_holds_its_gates_as_long_as_its_worker_renews(stage: Stage) -> None:
    declare(stage, {"call": [ONE, ACCOUNT]})
    put(stage, "x", "y")
    (claim,) = stage.take(limit=10)
    for _ in range(30):
        stage.now += 3600 * SECOND
        assert stage.run(consume.renew(stage.keys, "w1", LEASE, now=stage.now)).alive
        promote(stage)
        assert stage.take(limit=10) == []
    assert gate(stage, "one:")[1] == gate(stage, "account:x")[1] == 1
    for key in ("gate:one:", "gate:account:x", "slots:w1"):
        assert stage.client.ttl(stage.keys(key)) == -1, key
    stage.end(claim)
    assert len(stage.take(limit=10)) == 1


@pytest.mark.mangles
def test_slots_come_back_of_jobs_whose_records_are_gone(stage: Stage) -> None:
    declare(stage, {"call": [ONE]})
    put(stage, 1, 2)
    (claim,) = stage.take(limit=10)
    stage.client.delete(stage.keys.job(claim.id))
    stage.settle(stage.outcome(claim, "failed"))
    assert len(stage.take(limit=10)) == 1


@pytest.mark.parametrize("kind", ["released", "parked", "corrupt"])
def test_the_permit_of_what_did_not_start_comes_back(stage: Stage, kind: str) -> None:
    declare(stage, {"call": [ACCOUNT]})
    put(stage, "x", "x")
    (claim,) = stage.take(limit=10)
    stage.end(claim, kind, b"{}")
    assert len(stage.take(limit=10)) == 1


def test_a_start_that_the_store_forgot_holds_its_gates_again(stage: Stage) -> None:
    declare(stage, {"call": [ONE]})
    first, second = put(stage, 1, 2)
    answer = stage.run(settle_calls.restore(stage.keys, "w1", [(first, stage.now)]))
    assert (answer.others, answer.gone) == ([], [])
    assert gate(stage, "one:")[1] == 1
    assert stage.take(limit=10) == []
    stage.settle(stage.outcome(type("C", (), {"id": first, "token": stage.now})()))  # type: ignore[arg-type]
    assert ids(stage.take(limit=10)) == [second]


def test_a_hundred_starts_let_go_in_one_settle(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("fair", concurrency=Concurrency(1), by="account")]})
    put(stage, *range(100), *range(100))
    for _ in range(2):
        claims = stage.take(limit=1000)
        assert len(claims) == 100
        stage.settle(*(stage.outcome(claim, amount=0) for claim in claims))
    assert stage.take() == []
    assert {key.decode().partition("}:")[2] for key in stage.client.keys("*gate*")} == set()
    assert SECOND < KEEP


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
    stage.run(produce.cancel(stage.keys, claim.id, KEEP, stage.now))
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
        stage.run(consume.note(stage.keys, "w1", [said], request=request, now=stage.now))
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


@pytest.mark.parametrize(("ended", "held"), [(1, 4), (4, 1)], ids=["one of four that hold", "four of which one holds"])
def test_a_settle_lets_go_of_those_that_hold_and_no_others(stage: Stage, ended: int, held: int) -> None:
    declare(stage, {"call": [LimitRule("five", concurrency=Concurrency(5))]})
    limited = put(stage, *range(held))
    put(stage, *range(ended), task="plain")
    claims = stage.take(limit=10)
    first = [claim for claim in claims if claim.id == limited[0]]
    plain = [claim for claim in claims if claim.task == "plain"]
    assert gate(stage, "five:")[1] == held
    assert not stage.settle(*map(stage.outcome, [*first, *plain][:ended]), request=1).stale
    assert gate(stage, "five:")[1:] == (held - 1, False)
    assert stage.client.hlen(stage.keys("slots:w1")) == held - 1
