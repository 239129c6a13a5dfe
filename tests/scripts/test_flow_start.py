from __future__ import annotations

import pytest

from headrace.model.workflow import Graph, NewNode
from headrace.protocol import graph as protocol
from tests.scripts.graphs import Flow, fan
from tests.scripts.stage import SECOND, Stage


def test_the_roots_line_up(stage: Stage) -> None:
    flow = Flow(stage, "a>c b>c d", nodes={"d": {"queue": "low"}}).made()
    stage.now += SECOND
    assert flow.start() == "running"
    assert flow.states == {"a": "ready", "c": "blocked", "b": "ready", "d": "ready"}
    assert (stage.ready(), stage.ready("low")) == ([flow["a"], flow["b"]], [flow["d"]])
    assert (stage.tokens(), stage.tokens("low")) == (1, 1)
    assert (flow.now.active, flow.now.started_us) == (3, stage.now)
    assert flow.views() == {"|", "|running", "shop|", "shop|running"}


def test_a_second_start_changes_nothing(stage: Stage) -> None:
    flow = Flow(stage, "a>b c").started()
    before = stage.everything()
    stage.now += SECOND
    assert flow.start() == "running"
    assert stage.everything() == before


def test_named_nodes_start_whatever_they_wait_for(stage: Stage) -> None:
    flow = Flow(stage, "a>b b>c d").made()
    assert flow.start("b") == "running"
    assert flow.states == {"a": "blocked", "b": "ready", "c": "blocked", "d": "blocked"}
    assert flow.play() == ["b", "c"]
    # Its other nodes were never asked for: it waits for a start, rather than to be over.
    assert (flow.state, flow.counts) == ("pending", {"succeeded": 2})
    assert flow.start() == "running"
    assert flow.play() == ["a", "d"]
    assert (flow.state, flow.counts) == ("succeeded", {"succeeded": 4})


@pytest.mark.parametrize("first", ["parent", "child"])
def test_a_node_that_was_started_by_name_does_not_start_again_with_its_parents(stage: Stage, first: str) -> None:
    flow = Flow(stage, "a>b b>c").made()
    flow.start("a")
    flow.start("b")
    both = flow.claims()
    for name in ("a", "b") if first == "parent" else ("b", "a"):
        stage.end(both[name])
    assert flow.play() == ["c"]
    assert (flow.state, flow.counts) == ("succeeded", {"succeeded": 3})


def test_a_node_that_has_ended_or_runs_is_not_started_by_name(stage: Stage) -> None:
    flow = Flow(stage, "a>b c").started()
    taken = flow.claims()
    stage.end(taken["a"])
    before = stage.everything()
    assert flow.start("a", "c") == "running"
    assert stage.everything() == before


def test_no_name_starts_what_is_no_job_of_the_graph(stage: Stage) -> None:
    flow = Flow(stage, "a>j j>b u no", nodes={"j": {"role": "join"}, "a": {"undo": "u"}}, on_failure="no").started()
    assert flow.start("j", "u", "no") == "running"
    assert {flow.states[name] for name in ("j", "u", "no")} == {"blocked"}


def test_a_number_that_no_node_has_is_passed_over(stage: Stage) -> None:
    flow = Flow(stage, "a").started()
    assert stage.run(protocol.start(stage.keys, flow.id, [99])) == "running"
    assert len(flow.left()) == 2, "its record and its only node"


def test_an_empty_join_among_the_roots_is_done_at_once(stage: Stage) -> None:
    flow = Flow(stage, "j>a b", nodes={"j": {"role": "join"}}).started()
    assert flow.states == {"j": "succeeded", "a": "ready", "b": "ready"}
    assert Flow(stage, "j", nodes={"j": {"role": "join"}}).made().start() == "succeeded"


def test_what_has_ended_or_is_not_there_does_not_start(stage: Stage) -> None:
    done, failed, cancelled = (Flow(stage, "a").started() for _ in range(3))
    cancelled.cancel()
    assert cancelled.start() == "cancelled"
    cancelled.tend_all()
    held = {claim.id: claim for claim in stage.take()}
    stage.settle(stage.outcome(held[done["a"]]), stage.outcome(held[failed["a"]], "failed"))
    before = stage.everything()
    assert [one.start() for one in (done, failed, cancelled, Flow(stage, "a"))] == [
        "succeeded", "failed", "cancelled", "missing"
    ]  # fmt: skip
    assert stage.everything() == before


def test_more_roots_than_a_script_opens_become_a_chore(stage: Stage) -> None:
    wide = fan(2500)
    flow = Flow(stage, Graph("wide", tuple(node_without_edges(wide)))).made()
    assert flow.start() == "running"
    lined = len(stage.ready())
    assert 0 < lined < 2502
    # A second start must not make the chore count twice.
    assert flow.start() == "running"
    while taken := stage.take(limit=500):
        stage.settle(*(stage.outcome(claim) for claim in taken))
    assert (flow.state, flow.now.active) == ("running", 1)
    while flow.tend() or stage.ready():
        while taken := stage.take(limit=500):
            stage.settle(*(stage.outcome(claim) for claim in taken))
    assert (flow.state, flow.counts) == ("succeeded", {"succeeded": 2502})


def node_without_edges(graph: Graph) -> list[NewNode]:
    return [NewNode(node.form, node.args, (), (), node.facts) for node in graph.nodes]


def test_what_was_held_goes_on_in_its_order(stage: Stage) -> None:
    flow = Flow(stage, "a b c", nodes={"c": {"priority": 1}}).started()
    places = stage.members("ready:default")
    flow.stop()
    assert flow.claims() == {}
    assert stage.members(f"held:{flow.id}") == places
    assert flow.start() == "running"
    assert stage.members("ready:default") == places
    assert stage.tokens() == 1
    assert flow.play() == ["c", "a", "b"]
    assert flow.state == "succeeded"


def thawing(stage: Stage) -> Flow:
    """A workflow that was stopped with 2,502 nodes held, and was just started again."""
    flow = Flow(stage, Graph("wide", tuple(node_without_edges(fan(2500))))).started()
    flow.tend_all()
    flow.stop()
    while stage.ready():
        stage.take()
    flow.start()
    return flow


def test_more_than_a_script_lines_up_again_becomes_a_chore(stage: Stage) -> None:
    flow = thawing(stage)
    assert 0 < len(stage.ready()) < 2502
    flow.tend_all()
    assert len(stage.ready()) == 2502
    assert flow.now.active == 2502


def test_a_chore_of_what_was_held_ends_with_another_stop(stage: Stage) -> None:
    flow = thawing(stage)
    flow.stop()
    flow.tend_all()
    while stage.ready():
        assert stage.take() == []
    assert len(stage.members(f"held:{flow.id}")) == 2502
    flow.start()
    flow.tend_all()
    assert len(stage.ready()) == 2502
