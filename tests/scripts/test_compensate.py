"""The included script ``compensate``: what a workflow that failed did is undone."""

from __future__ import annotations

from tests.scripts.graphs import Flow
from tests.scripts.stage import Stage


def test_what_succeeded_and_may_be_undone_is_undone_last_first(stage: Stage) -> None:
    flow = undoable(stage)
    assert flow.play(d="failed") == ["a", "b", "c", "d", "uc", "ub", "ua", "no"]
    assert (flow.state, flow.counts, flow.now.total) == ("failed", {"succeeded": 3, "failed": 1}, 4)


def undoable(stage: Stage) -> Flow:
    plan = {"a": {"undo": "ua"}, "b": {"undo": "ub"}, "c": {"undo": "uc"}, "d": {"undo": "ud"}}
    return Flow(stage, "a>b b>c c>d ua ub uc ud no yes", nodes=plan, on_failure="no", on_success="yes").started()


def test_a_node_that_did_not_succeed_is_not_undone(stage: Stage) -> None:
    flow = undoable(stage)
    assert flow.play(b="failed") == ["a", "b", "ua", "no"]


def test_an_undo_that_fails_does_not_keep_the_others_from_being_undone(stage: Stage) -> None:
    flow = undoable(stage)
    assert flow.play(d="failed", uc="failed", ub="corrupt") == ["a", "b", "c", "d", "uc", "ub", "ua", "no"]
    assert (flow.state, flow.counts) == ("failed", {"succeeded": 3, "failed": 1})


def test_nothing_is_undone_of_what_succeeded(stage: Stage) -> None:
    flow = undoable(stage)
    assert flow.play() == ["a", "b", "c", "d", "yes"]
    assert flow.state == "succeeded"
    assert not stage.client.exists(stage.keys(f"undo:{flow.id}"))
