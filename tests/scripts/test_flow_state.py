"""The included script ``flow_state``: what a script adds to a workflow's counters."""

from __future__ import annotations

import pytest

from headrace.protocol import consume
from tests.scripts.graphs import Flow, fan
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


def test_more_children_than_a_script_walks_become_a_chore_that_keeps_it_running(stage: Stage) -> None:
    width = 2300
    flow = Flow(stage, fan(width)).started()
    first = flow.claims()["first"]
    answer = stage.settle(stage.outcome(first))
    assert answer.chores == 1
    lined = len(stage.ready())
    assert 0 < lined < width
    # Those that were lined up all end before anybody tends: it must not be over.
    while taken := stage.take(limit=500):
        stage.settle(*(stage.outcome(claim) for claim in taken))
    assert (flow.state, flow.now.active) == ("running", 1)
    flow.tend_all()
    assert len(stage.ready()) == width - lined
    while taken := stage.take(limit=500):
        stage.settle(*(stage.outcome(claim) for claim in taken))
        flow.tend_all()
    assert (flow.state, flow.counts) == ("succeeded", {"succeeded": width + 2})


@pytest.mark.parametrize("verb", ["walk", "cancel", "retry", "delete", "roots"])
def test_a_piece_of_a_long_verb_is_bounded(stage: Stage, verb: str) -> None:
    """In commands, since the clock of a busy machine says nothing of them."""
    flow = Flow(stage, fan(2000)).started()
    flow.end("first")
    if verb != "walk":
        flow.tend_all()
    if verb == "retry":
        while taken := stage.take(limit=500):
            stage.settle(*(stage.outcome(claim, "failed") for claim in taken))
    before = stage.commands()
    if verb == "roots":
        flow.stop()
        flow.start()
    elif verb != "walk":
        assert getattr(flow, verb)() in ("asked", "running", "ok")
    assert stage.commands() - before < 4000
    before = stage.commands()
    flow.tend(500)
    assert stage.commands() - before < 4000
    flow.tend_all()
