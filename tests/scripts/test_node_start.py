from __future__ import annotations

import pytest

from headrace.protocol.consume import promote
from tests.scripts.graphs import Flow
from tests.scripts.stage import SECOND, Stage


def test_a_node_of_a_stopped_workflow_keeps_its_place_until_that_goes_on(stage: Stage) -> None:
    flow = Flow(stage, "a b").started()
    places = stage.members("ready:default")
    flow.stop()
    assert flow.claims() == {}
    assert stage.members(f"held:{flow.id}") == places
    flow.start()
    assert stage.members("ready:default") == places


@pytest.mark.mangles
def test_a_node_of_a_workflow_that_is_gone_never_starts(stage: Stage) -> None:
    flow = Flow(stage, "a").started()
    stage.client.delete(stage.keys(f"flow:{flow.id}"))
    assert flow.claims() == {}
    assert stage.record(flow["a"]) == {}
    assert stage.ready() == []


@pytest.mark.mangles
@pytest.mark.parametrize("delay", [0, SECOND])
def test_a_node_whose_record_is_gone_is_claimed_so_that_its_workflow_hears_of_its_end(stage: Stage, delay: int) -> None:
    flow = Flow(stage, "a>b", nodes={"a": {"delay": delay}}).started()
    stage.client.delete(stage.keys.job(flow["a"]))
    stage.now += delay
    stage.run(promote(stage.keys, 10))
    (claim,) = flow.claims().values()
    assert (claim.id, claim.task) == (flow["a"], "")
    stage.end(claim, "corrupt")
    flow.tend_all()
    assert (flow.state, flow.states["a"]) == ("failed", "quarantined")


def test_what_undoes_a_failed_one_is_held_too(stage: Stage) -> None:
    flow = Flow(stage, "a>b c u", nodes={"a": {"undo": "u"}}).made()
    flow.start("a")
    flow.end("a")
    flow.end("b", "failed")
    flow.stop()
    assert flow.claims() == {}
    assert flow.states["u"] == "stopped"
    # Going back is not going on: the root that was never started stays so.
    assert flow.start() == "running"
    assert flow.play() == ["u"]
    assert (flow.state, flow.states["c"]) == ("failed", "blocked")


def test_a_callback_is_not_held(stage: Stage) -> None:
    flow = Flow(stage, "a no", on_failure="no").started()
    flow.end("a", "failed")
    flow.retry()
    flow.stop()
    assert flow.play() == ["no"]
    flow.start()
    assert flow.play() == ["a"]
