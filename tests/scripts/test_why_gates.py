from __future__ import annotations

import pytest

from headrace.model.limit_rules import Concurrency, LimitRule, Rate
from headrace.protocol import operations
from tests.scripts.asked import codes, why
from tests.scripts.limited_stage import ACCOUNT, API, change, declare, put
from tests.scripts.stage import SECOND, Stage


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
