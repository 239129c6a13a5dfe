from __future__ import annotations

from typing import Any

import pytest

from headrace.model.unique_rules import UniqueRule
from tests.scripts.asked import why
from tests.scripts.graphs import Flow, fan
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
