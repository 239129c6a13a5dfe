from __future__ import annotations

from typing import Any

import pytest

from headrace.model.limit_rules import Concurrency, LimitRule, Rate
from headrace.model.unique_rules import UniqueRule
from headrace.protocol import operations
from tests.scripts.asked import codes, why
from tests.scripts.graphs import Flow, fan
from tests.scripts.limited_stage import ACCOUNT, API, change, declare, put
from tests.scripts.stage import SECOND, Stage
from tests.scripts.unique_stage import one


def test_an_ordered_job_tells_who_has_the_turn_and_why_that_waits(stage: Stage) -> None:
    first, *_, last = stage.put(4, key="k", ordered=True)
    found = why(stage, last)
    reason = found.reasons[0]
    assert (found.state, reason.code) == ("blocked", "waits_for_its_turn")
    assert reason.evidence == {"key": "k", "ahead": 2, "holder": first, "holder_state": "ready"}
    assert f"job {first} is ready: no worker lives; 2 jobs are before it" in reason.text
    stage.take()
    stage.now += SECOND
    assert f"job {first} is running: it runs on host:w1 since 1.0 s" in why(stage, last).reasons[0].text


@pytest.mark.parametrize("facts", [{}, {"key": "k", "ordered": True}])
def test_a_unique_job_tells_which_one_it_follows_and_why_that_has_not_ended(
    stage: Stage, facts: dict[str, Any]
) -> None:
    """It was said to be inconsistent, and that a cancellation ends it."""
    rule = UniqueRule("n", clash="latest")
    first = one(stage, rule)
    stage.take()
    last = one(stage, rule, **facts)
    stage.now += SECOND
    found = why(stage, last)
    reason = found.reasons[0]
    assert (found.state, reason.code) == ("blocked", "waits_for_its_turn")
    assert reason.evidence == {"name": "n", "holder": first, "holder_state": "running"}
    assert f"job {first} is running: it runs on host:w1 since 1.0 s" in reason.text


@pytest.mark.mangles
def test_a_turn_whose_holder_is_gone_is_told(stage: Stage) -> None:
    first, last = stage.put(2, key="k", ordered=True)
    stage.client.zrem(stage.keys("ready:default"), first)
    stage.client.delete(stage.keys.job(first))
    assert f"job {first} is not stored" in why(stage, last).reasons[0].text


def test_a_node_tells_the_first_parent_that_has_not_ended_and_its_reason(stage: Stage) -> None:
    flow = Flow(stage, "a>d b>d c>d", nodes={"b": {"delay": 60 * SECOND}}).started()
    for name, claim in flow.claims().items():
        if name == "a":
            stage.end(claim)
    found = why(stage, flow["d"])
    reason = found.reasons[0]
    assert (found.state, reason.code, reason.evidence["node"]) == ("blocked", "waits_for_nodes", flow["b"])
    assert reason.text == "it waits for 2 of its 3 parents; node b is scheduled: it is due in 60.0 s"


def test_a_node_behind_one_that_failed_says_how_to_go_on(stage: Stage) -> None:
    flow = Flow(stage, "a>c b>c:c c>d").started()
    flow.play(a="failed", b="failed")
    reason = why(stage, flow["c"]).reasons[0]
    assert (reason.code, reason.text) == ("waits_for_nodes", "node a, which it depends on, is failed")
    assert reason.next_step == f"headrace workflows retry {flow.id} goes on from there"
    assert "node c is blocked: node a, which it depends on, is failed" in why(stage, flow["d"]).reasons[0].text


def test_a_node_with_many_parents_costs_a_bounded_time(stage: Stage) -> None:
    flow = Flow(stage, fan(1200)).started()
    flow.end("first")
    last = flow["last"]
    reason = why(stage, last).reasons[0]
    assert reason.evidence["parents"] == 1200
    assert "node item-2 is ready" in reason.text


def test_a_closed_gate_of_a_rate_says_when_it_opens(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    first, second, third, _ = put(stage, "acme", "acme", "acme", "other")
    assert [claim.id for claim in stage.take(limit=1)] == [first]
    stage.end(stage.running(task="free"))
    reason = why(stage, third).reasons[0]
    assert (reason.code, reason.evidence["value"], reason.evidence["ahead"]) == ("gate_closed", "acme", 1)
    assert reason.text.startswith("limit account of acme is closed until one of its jobs ends: 1 job is running")
    assert why(stage, second).reasons[0].evidence["limit"] == "account"


def test_a_gate_whose_rate_is_used_up(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    first, second = put(stage, "acme", "acme")
    (claim,) = stage.take(limit=1)
    assert claim.id == first
    stage.end(claim)
    stage.now += SECOND
    reason = why(stage, second).reasons[0]
    assert reason.code == "gate_closed"
    assert int(reason.evidence["opens_us"]) > stage.now
    assert "lets the next job start in" in reason.text


def test_a_limit_of_all_is_told_without_a_value(stage: Stage) -> None:
    declare(stage, {"call": [API]})
    *_, last = put(stage, 1, 2, 3)
    assert len(stage.take()) == 2
    reason = why(stage, last).reasons[0]
    assert (reason.code, reason.evidence["limit"], reason.evidence["running"]) == ("gate_closed", "api", 2)


def test_a_pause_decides_before_a_gate_and_an_open_gate_is_no_reason(stage: Stage) -> None:
    declare(stage, {"call": [API]})
    *_, last = put(stage, 1, 2, 3)
    assert "gate_closed" not in codes(stage, last)
    stage.take()
    stage.run(operations.pause(stage.keys, "default", 0))
    assert codes(stage, last)[:1] == ["queue_paused"]
    assert "gate_closed" in codes(stage, last)


@pytest.mark.parametrize(
    ("limit", "value", "text", "step"),
    [
        ("api", None, "limit api is paused", "headrace limits resume api lets its jobs start"),
        ("account", None, "limit account is paused", "headrace limits resume account lets its jobs start"),
        (
            "account", "a b", "limit account of a b is paused",
            "headrace limits resume account --value 'a b' lets its jobs start",
        ),
    ],
)  # fmt: skip
def test_a_paused_limit_is_told_as_that_also_where_its_jobs_run(
    stage: Stage, limit: str, value: str | None, text: str, step: str
) -> None:
    declare(stage, {"call": [LimitRule("api", concurrency=Concurrency(1)), LimitRule("account", by="account")]})
    _, last = put(stage, "a b", "a b")
    assert len(stage.take()) == 1
    assert "concurrency N" in why(stage, last).reasons[0].next_step
    change(stage, limit, paused=True, value=value)
    reason = why(stage, last).reasons[0]
    assert (reason.code, reason.text, reason.next_step) == ("gate_closed", text, step)
    assert reason.evidence["closed_by"] == "paused"
    change(stage, limit, paused=True, value=value, duration=60 * SECOND)
    assert why(stage, last).reasons[0].text == f"{text} for another 60.0 s"


def test_each_closed_limit_has_its_next_step(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("slow", Rate(1, per=100)), LimitRule("calls")]})
    first, second = put(stage, 1, 2)
    (claim,) = stage.take(limit=1)
    assert claim.id == first
    assert "--rate N/TIME" in why(stage, second).reasons[0].next_step
    stage.settle(stage.outcome(claim, "limited", b"calls", 500 * SECOND), ready=claim.score)
    stage.now += 200 * SECOND
    reason = why(stage, second).reasons[0]
    assert (reason.evidence["limit"], reason.evidence["closed_by"]) == ("calls", "refused")
    assert "a call of its jobs was refused" in reason.text
