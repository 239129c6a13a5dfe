"""The included script ``withdraw``: one node of a workflow is cancelled alone, as any job."""

from __future__ import annotations

from headrace.protocol import produce
from tests.scripts.graphs import Flow
from tests.scripts.stage import KEEP, SECOND, Stage


def cancel(flow: Flow, name: str) -> str:
    return flow.stage.run(produce.cancel(flow.stage.keys, flow[name], KEEP).at(flow.stage.now))


def test_a_ready_node_is_cancelled_and_its_children_follow_their_policies(stage: Stage) -> None:
    flow = Flow(stage, "a>b a>c:c a>d:k").started()
    assert cancel(flow, "a") == "cancelled"
    assert flow.states == {"a": "cancelled", "b": "blocked", "c": "ready", "d": "skipped"}
    flow.play()
    assert (flow.state, flow.counts) == ("failed", {"cancelled": 1, "succeeded": 1, "skipped": 1})
    assert flow.retry() == "running"
    assert flow.play() == ["a", "b"]
    assert flow.state == "succeeded"


def test_a_blocked_node_is_cancelled_before_its_parents_end(stage: Stage) -> None:
    flow = Flow(stage, "a>b b>c:c").started()
    assert cancel(flow, "b") == "cancelled"
    assert flow.states["c"] == "ready"
    assert flow.now.active == 2
    assert sorted(flow.play()) == ["a", "c"]
    assert (flow.state, flow.counts) == ("succeeded", {"succeeded": 2, "cancelled": 1})


def test_each_waiting_state_is_left(stage: Stage) -> None:
    flow = Flow(stage, "late parked held", nodes={"late": {"delay": SECOND}, "held": {"queue": "q"}}).started()
    stage.end(flow.claims()["parked"], "parked")
    flow.stop()
    assert flow.claims(["q"]) == {}
    assert flow.states == {"late": "scheduled", "parked": "parked", "held": "stopped"}
    for name in flow.names:
        assert cancel(flow, name) == "cancelled"
    assert (flow.state, flow.counts) == ("failed", {"cancelled": 3})


def test_a_running_node_is_asked(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    claim = flow.claims()["a"]
    assert cancel(flow, "a") == "asked"
    stage.end(claim, "cancelled")
    assert (flow.state, flow.counts) == ("failed", {"cancelled": 1})
    assert stage.record(flow["a"]).keys().isdisjoint({"cancel", "owner"})


def test_what_is_no_job_yet_cannot_be_cancelled(stage: Stage) -> None:
    flow = Flow(stage, "a>j j>b u no", nodes={"j": {"role": "join"}, "a": {"undo": "u"}}, on_failure="no").started()
    before = stage.everything()
    assert [cancel(flow, name) for name in ("j", "u", "no")] == ["blocked"] * 3
    assert stage.everything() == before


def test_what_a_start_added_that_did_not_succeed_cannot_be_cancelled(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    claim = flow.claims()["a"]
    flow.grow(claim, "x")
    assert cancel(flow, "+x") == "blocked"
    stage.end(claim, "grown")
    assert cancel(flow, "+x") == "cancelled"


def test_what_has_ended_stays_as_it_is(stage: Stage) -> None:
    flow = Flow(stage, "a").started()
    flow.play()
    assert cancel(flow, "a") == "succeeded"
    flow.delete()
    assert cancel(flow, "a") == "missing"
