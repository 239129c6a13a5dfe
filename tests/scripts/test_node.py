"""The included script ``node``: nodes line up, and end."""

from __future__ import annotations

import msgspec
import pytest

from headrace.protocol import consume, produce
from tests.scripts.graphs import Flow, grafted
from tests.scripts.stage import KEEP, LEVEL, SECOND, Stage


def test_a_workflow_whose_failures_are_all_coped_with_succeeds(stage: Stage) -> None:
    flow = Flow(stage, "a>b:c b>c").started()
    assert flow.play(a="failed") == ["a", "b", "c"]
    assert (flow.state, flow.counts) == ("succeeded", {"failed": 1, "succeeded": 2})


def test_a_failed_leaf_fails_its_workflow(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    flow.play(b="failed")
    assert flow.state == "failed"


def test_a_join_ends_with_its_parents_and_is_not_counted(stage: Stage) -> None:
    flow = Flow(stage, "a>j b>j j>p p>c", nodes={"j": {"role": "join"}, "p": {"role": "pass"}}).started()
    assert flow.play() == ["a", "b", "c"]
    assert flow.now.total == 3
    assert flow.counts == {"succeeded": 3}
    assert flow.states["j"] == flow.states["p"] == "succeeded"


def test_a_join_of_a_failed_parent_never_ends(stage: Stage) -> None:
    flow = Flow(stage, "a>j b>j j>c", nodes={"j": {"role": "join"}}).started()
    flow.play(a="failed")
    assert (flow.state, flow.states["j"], flow.states["c"]) == ("failed", "blocked", "blocked")


def test_a_delay_counts_from_the_moment_of_lining_up(stage: Stage) -> None:
    flow = Flow(stage, "a>b", nodes={"b": {"delay": 5 * SECOND}}).started()
    stage.now += 100 * SECOND
    flow.end("a")
    assert stage.members("scheduled") == {flow["b"]: stage.now + 5 * SECOND}
    assert flow.now.active == 1
    stage.now += 5 * SECOND
    stage.run(consume.promote(stage.keys, 10))
    assert flow.play() == ["b"]
    assert flow.state == "succeeded"


def test_queue_and_priority_of_a_child_are_its_own(stage: Stage) -> None:
    flow = Flow(stage, "a>b", nodes={"b": {"queue": "low", "priority": 2}}).started()
    flow.end("a")
    assert stage.members("ready:low") == {flow["b"]: stage.now - 2 * LEVEL}
    assert stage.tokens("low") == 1
    assert stage.names("queues") == {"default", "low"}
    ready, stage.now = stage.now, stage.now + SECOND
    (claim,) = stage.take(queues=["low"])
    assert (claim.ready, claim.priority, claim.score) == (ready, 2, ready - 2 * LEVEL)


def test_a_crash_budget_that_is_used_up_fails_the_workflow(stage: Stage) -> None:
    flow = Flow(stage, "a>b", nodes={"a": {"max_crashes": 1}}).started()
    flow.claims()
    stage.run(consume.reclaim(stage.keys, "w1", True, 500, KEEP))
    assert (flow.state, flow.states["a"], flow.now.failed_node) == ("failed", "quarantined", "a")


def test_what_stands_for_skipped_nodes_alone_is_skipped_with_them(stage: Stage) -> None:
    flow = Flow(stage, "a>m:c b>m:c m>x m>y:c", nodes={"m": {"role": "join"}}).started()
    assert flow.play(a="skipped", b="skipped") == ["a", "b", "y"]
    assert (flow.states["m"], flow.states["x"], flow.state) == ("skipped", "skipped", "succeeded")


@pytest.mark.parametrize("other", ["succeeded", "failed"])
def test_what_stands_for_a_node_that_ran_is_not_skipped_with_another(stage: Stage, other: str) -> None:
    flow = Flow(stage, "a>m:c b>m:c m>x", nodes={"m": {"role": "join"}}).started()
    assert flow.play(a="skipped", b=other) == ["a", "b", "x"]
    assert (flow.states["m"], flow.state) == ("succeeded", "succeeded")


@pytest.mark.parametrize("gather", [True, False])
def test_a_node_that_has_an_output_of_its_own_is_not_skipped_with_what_it_added(stage: Stage, gather: bool) -> None:
    flow = Flow(stage, "a>b").started()
    one = flow.claims()["a"]
    graft = msgspec.structs.replace(grafted("x"), gather=gather)
    x = msgspec.structs.replace(graft.nodes[0], children=((2, "continue"),))
    flow.graft(one, msgspec.structs.replace(graft, nodes=(x, graft.nodes[1])))
    stage.end(one, "grown")
    assert flow.play(**{"+x": "skipped"}) == ["+x"] + ["b"] * (not gather)


def test_whoever_waits_for_a_node_is_told(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    stage.run(produce.watch(stage.keys, flow["a"], SECOND))
    pubsub = stage.subscribe(stage.keys.done(flow["a"]))
    flow.end("a")
    assert pubsub.get_message(timeout=20)["data"] == b"succeeded"
    pubsub.close()


def test_a_cancelled_node_frees_nothing_before_its_workflow_is_started(stage: Stage) -> None:
    flow = Flow(stage, "a>b:c c").made()
    assert stage.run(produce.cancel(stage.keys, flow["a"], KEEP)) == "cancelled"
    assert (flow.claims(), flow.state) == ({}, "pending")
    assert flow.start() == "running"
    assert sorted(flow.play()) == ["b", "c"]
    assert (flow.state, flow.counts) == ("succeeded", {"cancelled": 1, "succeeded": 2})


def test_the_end_is_told_before_the_callback_has_run_and_whatever_becomes_of_it(stage: Stage) -> None:
    flow = Flow(stage, "a yes no", on_success="yes", on_failure="no").started()
    flow.end("a")
    assert (flow.state, flow.now.active) == ("succeeded", 0)
    finished = flow.now.finished_us
    stage.now += SECOND
    flow.end("yes", "failed")
    assert (flow.state, flow.now.finished_us, flow.counts, flow.states["no"]) == (
        "succeeded", finished, {"succeeded": 1}, "blocked"
    )  # fmt: skip


def test_a_callback_is_called_again_after_a_retry(stage: Stage) -> None:
    flow = Flow(stage, "a no yes", on_failure="no", on_success="yes").started()
    assert flow.play(a="failed") == ["a", "no"]
    assert flow.retry() == "running"
    assert flow.play(a="failed") == ["a", "no"]
    assert flow.retry() == "running"
    assert flow.play() == ["a", "yes"]
    assert flow.state == "succeeded"


def test_an_end_that_is_reached_while_an_earlier_one_is_told_is_told_after_it(stage: Stage) -> None:
    """A callback that retries what failed had been told of the first failure only."""
    flow = Flow(stage, "a no yes", on_failure="no", on_success="yes").started()
    flow.end("a", "failed")
    for _ in range(3):
        told = flow.claims()["no"]
        assert flow.retry() == "running"
        flow.end("a", "failed")
        assert stage.state(told.id) == "running", "it is not started beside itself"
        stage.end(told, "failed")
        assert (stage.ready(), stage.record(told.id).get("failures")) == ([told.id], None)
    assert flow.play() == ["no"], "no end came while the last one ran"
    assert flow.state == "failed"


@pytest.mark.parametrize("kind", ["retry", "snoozed", "interrupted", "crashed"])
def test_a_callback_that_starts_again_anyway_has_seen_the_newest_end(stage: Stage, kind: str) -> None:
    flow = Flow(stage, "a no", on_failure="no").started()
    flow.end("a", "failed")
    told = flow.claims()["no"]
    flow.retry()
    flow.end("a", "failed")
    stage.end(told, kind, b"{}", 0)
    assert flow.play() == ["no"], "once: this start began after that end"


def test_two_callbacks_are_told_of_two_ends(stage: Stage) -> None:
    flow = Flow(stage, "a no yes", on_failure="no", on_success="yes").started()
    flow.end("a", "failed")
    told = flow.claims()["no"]
    flow.retry()
    flow.end("a")
    assert flow.state == "succeeded"
    assert list(flow.claims()) == ["yes"]
    stage.end(told)
    assert stage.ready() == []


def test_a_callback_that_waits_for_its_worker_is_in_one_place(stage: Stage) -> None:
    flow = Flow(stage, "a no", on_failure="no", nodes={"no": {"task": "later"}}).started()
    flow.end("a", "failed")
    flow.end("no", "parked")
    flow.retry()
    flow.end("a", "failed")
    assert stage.members("parked:later").keys() == {flow["no"]}
    assert stage.ready() == []


def test_one_that_failed_is_among_what_failed_until_it_is_called_again(stage: Stage) -> None:
    flow = Flow(stage, "a no", on_failure="no").started()
    assert flow.play(a="failed", no="failed") == ["a", "no"]
    assert set(stage.members("failed")) == {flow["a"], flow["no"]}
    assert flow.retry() == "running"
    assert flow.play(a="failed") == ["a", "no"]
    assert set(stage.members("failed")) == {flow["a"]}


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
