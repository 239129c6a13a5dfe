"""The included script ``drop``: all or nothing of a workflow, and others are left alone."""

from __future__ import annotations

from headrace.protocol import consume
from tests.scripts.graphs import Flow
from tests.scripts.stage import KEEP, Stage


def test_another_workflow_keeps_all_that_it_has(stage: Stage) -> None:
    other = Flow(stage, "a>b c", ttl=KEEP).started()
    other.play(c="failed")
    before = stage.everything()
    flow = Flow(stage, "a>b c", ttl=KEEP).started()
    flow.play(c="failed")
    flow.delete()
    past = ("owner", "token", "events", "deaths", "causes", "cause", "floods")
    assert {key: value for key, value in stage.everything()["0"].items() if key not in past} == {
        key: value for key, value in before["0"].items() if key not in past
    }


def test_logs_leave_with_their_nodes(stage: Stage) -> None:
    flow = Flow(stage, "a").started()
    claim = flow.claims()["a"]
    stage.run(consume.note(stage.keys, "w1", [consume.Note(claim.id, claim.token, lines=("one",))]))
    stage.end(claim)
    flow.delete()
    assert flow.left() == set()


def test_nodes_that_were_added_leave_too_linked_or_not(stage: Stage) -> None:
    flow = Flow(stage, "a>b c").started()
    taken = flow.claims()
    flow.grow(taken["a"], "x>y")
    stage.end(taken["a"], "grown")
    flow.grow(taken["c"], "z")
    flow.delete()
    assert flow.left() == set()
