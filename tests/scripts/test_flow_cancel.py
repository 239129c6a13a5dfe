from __future__ import annotations

import pytest

from headrace.protocol import consume, produce
from headrace.protocol import graph as protocol
from tests.scripts.graphs import Flow, fan
from tests.scripts.stage import KEEP, SECOND, Stage


def test_what_waits_ends_and_what_runs_is_asked_to_stop(stage: Stage) -> None:
    flow = Flow(stage, "run>b ready late parked", nodes={"late": {"delay": SECOND}, "ready": {"queue": "q"}}).started()
    taken = flow.claims()
    stage.end(taken["parked"], "parked")
    pubsub = stage.subscribe(stage.keys.mail("w1"))
    assert flow.cancel() == "asked"
    assert flow.state == "running"
    flow.tend_all()
    assert flow.states == {name: "running" if name == "run" else "cancelled" for name in flow.names}
    assert pubsub.get_message(timeout=20)["data"].decode() == flow["run"]
    pubsub.close()
    assert (stage.members("scheduled"), stage.ready("q"), stage.names("parking")) == ({}, [], set())
    assert (flow.state, flow.now.active) == ("running", 1)
    stage.end(taken["run"], "cancelled")
    assert (flow.state, flow.counts) == ("cancelled", {"cancelled": 5})
    assert flow.views() == {"|", "|cancelled", "shop|", "shop|cancelled"}


def test_the_end_of_what_ran_frees_nothing(stage: Stage) -> None:
    flow = Flow(stage, "a>b a>c:c").started()
    claim = flow.claims()["a"]
    flow.cancel()
    stage.end(claim)
    assert stage.ready() == []
    flow.tend_all()
    assert (flow.state, flow.counts) == ("cancelled", {"succeeded": 1, "cancelled": 2})


def test_a_node_that_never_started_stays_when_its_workflow_has_ended(stage: Stage) -> None:
    """Its end let its child run, in a workflow that had failed."""
    flow = Flow(stage, "a>b b>c:c").started()
    stage.end(flow.claims()["a"], "failed")
    before = stage.everything()
    assert stage.run(produce.cancel(stage.keys, flow["b"], KEEP)) == "blocked"
    assert (flow.state, stage.everything()) == ("failed", before)


def test_a_node_that_never_started_stays_while_its_workflow_is_undone(stage: Stage) -> None:
    """Its end let its child run beside what undoes the workflow."""
    flow = Flow(stage, "a>b b>c c>d:c u", nodes={"a": {"undo": "u"}}).started()
    flow.end("a")
    flow.end("b", "failed")
    before = stage.everything()
    assert stage.run(produce.cancel(stage.keys, flow["c"], KEEP)) == "blocked"
    assert stage.everything() == before
    assert flow.play() == ["u"]
    assert (flow.state, flow.counts) == ("failed", {"succeeded": 1, "failed": 1})


def test_a_repeat_adds_nothing(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    flow.cancel()
    before = stage.everything()
    stage.now += 1
    assert flow.cancel() == "asked"
    assert stage.everything() == before
    flow.tend_all()
    assert (flow.cancel(), Flow(stage, "a").cancel()) == ("cancelled", "missing")


def test_one_that_was_never_started_is_cancelled_wholly(stage: Stage) -> None:
    flow = Flow(stage, "a>j b>j j>c u no", nodes={"a": {"undo": "u"}, "j": {"role": "join"}}, on_failure="no").made()
    flow.cancel()
    flow.tend_all()
    assert (flow.state, flow.counts) == ("cancelled", {"cancelled": 3})
    assert flow.play() == ["no"]


@pytest.mark.parametrize("limit", [1, 7, 500])
def test_a_large_one_is_cancelled_a_piece_at_a_time(stage: Stage, limit: int) -> None:
    width = 40 if limit < 10 else 2300
    flow = Flow(stage, fan(width)).started()
    flow.end("first")
    flow.tend_all()
    flow.cancel()
    flow.tend(limit)
    assert flow.state == "running"
    flow.tend_all(limit)
    assert (flow.state, flow.counts) == ("cancelled", {"succeeded": 1, "cancelled": width + 1})


def test_a_fan_out_that_is_under_way_ends_with_it(stage: Stage) -> None:
    flow = Flow(stage, fan(2300)).started()
    flow.end("first")
    assert len(flow.chores()) == 1
    flow.cancel()
    flow.tend_all(100)
    assert (flow.state, flow.counts) == ("cancelled", {"succeeded": 1, "cancelled": 2301})
    assert flow.chores() == []


def test_a_retry_that_is_under_way_ends_with_it(stage: Stage) -> None:
    flow = Flow(stage, fan(1300)).started()
    flow.end("first")
    flow.tend_all()
    while taken := stage.take(limit=500):
        stage.settle(*(stage.outcome(claim, "failed") for claim in taken))
    assert flow.state == "failed"
    assert flow.retry() == "running"
    assert flow.chores() == [f"retry:{flow.id}"]
    stage.now += 1
    flow.cancel()
    flow.tend_all(50)
    assert (flow.state, flow.chores(), stage.ready()) == ("cancelled", [], [])
    assert sum(flow.counts.values()) == 1302


def test_what_was_held_is_cancelled(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    flow.stop()
    flow.claims()
    assert flow.cancel() == "asked"
    flow.tend_all()
    assert (flow.state, flow.counts) == ("cancelled", {"cancelled": 2})
    assert not stage.client.exists(stage.keys(f"held:{flow.id}"))


def test_what_is_ready_is_not_claimed_before_the_chore_has_come_to_it(stage: Stage) -> None:
    flow = Flow(stage, "a b").started()
    flow.cancel()
    assert flow.claims() == {}
    flow.tend_all()
    assert (flow.state, flow.counts) == ("cancelled", {"cancelled": 2})


@pytest.mark.parametrize("kind", ["retry", "snoozed", "released", "interrupted", "parked", "crashed"])
def test_whatever_becomes_of_what_ran_it_does_not_run_again(stage: Stage, kind: str) -> None:
    flow = Flow(stage, "a>b").started()
    claim = flow.claims()["a"]
    flow.cancel()
    flow.tend_all()
    stage.end(claim, kind, b"{}", SECOND)
    assert (flow.state, flow.states["a"]) == ("cancelled", "cancelled")


def test_what_ran_on_a_worker_that_died_ends_too(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    flow.claims()
    flow.cancel()
    flow.tend_all()
    stage.run(consume.reclaim(stage.keys, "w1", True, 10, KEEP))
    assert (flow.state, flow.counts) == ("cancelled", {"cancelled": 2})


def test_what_it_did_is_undone_last_first_and_its_callback_called(stage: Stage) -> None:
    nodes = {"a": {"undo": "ua"}, "b": {"undo": "ub"}}
    flow = Flow(stage, "a>b b>c ua ub no", nodes=nodes, on_failure="no").started()
    flow.end("a")
    flow.end("b")
    flow.cancel()
    flow.tend_all()
    assert flow.play() == ["ub", "ua", "no"]
    assert (flow.state, flow.counts) == ("cancelled", {"succeeded": 2, "cancelled": 1})


def test_what_is_being_undone_goes_on_when_it_is_cancelled(stage: Stage) -> None:
    flow = Flow(stage, "a>b b>c u no", nodes={"a": {"undo": "u"}}, on_failure="no").started()
    flow.end("a")
    flow.end("b", "failed")
    undoing = flow.claims()
    assert flow.cancel() == "asked"
    flow.tend_all()
    assert stage.names("cancels:w1") == set()
    stage.end(undoing["u"])
    assert flow.play() == ["no"]
    assert (flow.state, flow.counts) == ("cancelled", {"succeeded": 1, "failed": 1, "cancelled": 1})


def test_a_cancelled_one_is_neither_retried_nor_started(stage: Stage) -> None:
    flow = Flow(stage, "a b").started()
    taken = flow.claims()
    stage.end(taken["a"], "failed")
    flow.cancel()
    assert (flow.retry(), flow.start()) == ("cancelled", "cancelled")
    flow.tend_all()
    stage.end(taken["b"], "cancelled")
    before = stage.everything()
    assert (flow.retry(), flow.start()) == ("cancelled", "cancelled")
    assert stage.everything() == before


def test_a_node_that_grows_meanwhile_adds_nothing(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    claim = flow.claims()["a"]
    flow.grow(claim, "x y")
    flow.cancel()
    assert stage.run(protocol.reserve(stage.keys, "w1", claim.id, claim.token, 3)) == 0
    flow.tend_all()
    stage.end(claim, "grown")
    assert (flow.state, flow.counts) == ("cancelled", {"succeeded": 1, "cancelled": 1})
    assert flow.states["+x"] == "blocked"
    flow.delete()
    assert flow.left() == set()


def test_whoever_waits_is_told(stage: Stage) -> None:
    flow = Flow(stage, "a").started()
    stage.run(protocol.watch_flow(stage.keys, flow.id, SECOND))
    pubsub = stage.subscribe(stage.keys.done(flow.id))
    flow.cancel()
    flow.tend_all()
    assert pubsub.get_message(timeout=20)["data"] == b"cancelled"
    pubsub.close()


def test_one_that_was_stopped_is_undone_too(stage: Stage) -> None:
    flow = Flow(stage, "a>b u", nodes={"a": {"undo": "u"}}).started()
    flow.end("a")
    flow.stop()
    assert flow.claims() == {}
    flow.cancel()
    flow.tend_all()
    assert flow.play() == ["u"]
    assert (flow.state, flow.counts) == ("cancelled", {"succeeded": 1, "cancelled": 1})


def test_what_a_start_still_lines_up_is_cancelled_with_the_rest(stage: Stage) -> None:
    """One script may come to what a start has left to do, and then to the cancellation of the same nodes."""
    flow = Flow(stage, " ".join(f"n{n}" for n in range(501)), nodes={"n0": {"priority": -1}}).made()
    flow.start()
    flow.stop()
    flow.tend_all()
    while stage.client.exists(stage.keys("ready:default")):
        flow.claims()
    flow.start()
    assert flow.states["n0"] == "stopped", "one more than a script lines up at once"
    stage.now += 1
    flow.cancel()
    flow.tend_all()
    assert flow.claims() == {}
    assert (flow.state, flow.counts) == ("cancelled", {"cancelled": 501})


def test_what_undoes_it_goes_on_although_a_stop_held_it(stage: Stage) -> None:
    flow = Flow(stage, "a>b u", nodes={"a": {"undo": "u"}}).started()
    flow.end("a")
    flow.end("b", "failed")
    flow.stop()
    assert flow.claims() == {}
    assert flow.states["u"] == "stopped"
    flow.cancel()
    flow.tend_all()
    assert flow.play() == ["u"]
    assert (flow.state, flow.counts) == ("cancelled", {"succeeded": 1, "failed": 1})
