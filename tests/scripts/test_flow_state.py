"""The included script ``flow_state``: what a script adds to a workflow's counters."""

from __future__ import annotations

from headrace.protocol import consume
from tests.scripts.graphs import Flow
from tests.scripts.stage import KEEP, Stage


def test_a_repeated_settle_counts_nothing_twice(stage: Stage) -> None:
    flow = Flow(stage, "a>c b>c").started()
    both = flow.claims()
    call = consume.settle(stage.keys, "w1", stage.next(), [(stage.outcome(both["a"]), 0)], KEEP).at(stage.now)
    stage.run(call)
    before = stage.everything()
    assert stage.run(call).repeated
    # The same end under another number, as a dispatcher sends it that was taken for dead.
    assert stage.settle(stage.outcome(both["a"])).stale == [flow["a"]]
    after = stage.everything()
    after["0"]["owner"]["w1"]["settled"] = before["0"]["owner"]["w1"]["settled"]
    assert after == before


def test_outcomes_that_are_no_end_keep_the_workflow_running(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    for kind in ("retry", "snoozed", "released", "interrupted", "crashed"):
        stage.end(flow.claims()["a"], kind, b"", 0)
        assert (flow.state, flow.now.active, flow.states) == ("running", 1, {"a": "ready", "b": "blocked"}), kind
    stage.end(flow.claims()["a"], "parked")
    assert (flow.now.active, flow.states["a"]) == (1, "parked")
    stage.run(consume.unpark(stage.keys, "add", 10, ["default"]))
    assert flow.play() == ["a", "b"]


def test_results_of_nodes_are_their_workflows_and_count_for_no_cap(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    flow.play()
    assert flow.output("a") == b"a"
    assert (stage.bytes(), stage.members("expires"), stage.members("succeeded")) == (0, {}, {})
