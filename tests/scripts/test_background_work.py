"""The included script ``background_work``: what is too long for one script goes on in pieces."""

from __future__ import annotations

import pytest

from tests.scripts.graphs import Flow, fan
from tests.scripts.stage import Stage


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
