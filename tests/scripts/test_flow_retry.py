from __future__ import annotations

import pytest

from headrace.protocol import consume, produce
from tests.scripts.graphs import Flow, fan
from tests.scripts.stage import KEEP, SECOND, Stage


@pytest.mark.parametrize("kind", ["failed", "cancelled", "corrupt"])
def test_it_goes_on_from_what_failed(stage: Stage, kind: str) -> None:
    flow = Flow(stage, "a>b b>c d", ttl=5 * SECOND).started()
    flow.play(b=kind)
    assert (flow.state, flow.now.failed_node) == ("failed", "b")
    assert stage.members("lapses") == {flow.id: flow.now.finished_us + 5 * SECOND}
    assert flow.retry() == "running"
    record = flow.now
    assert (record.finished_us, record.lapses_us, record.failed_node, record.active) == (0, 0, "", 1)
    assert flow.views() == {"|", "|running", "shop|", "shop|running"}
    assert stage.record(flow["b"]).keys().isdisjoint({"error", "finished", "failures"})
    assert flow.play() == ["b", "c"]
    assert (flow.state, flow.counts) == ("succeeded", {"succeeded": 4})
    assert stage.members("lapses") == {flow.id: flow.now.finished_us + 5 * SECOND}


def test_only_edges_that_had_not_counted_count_then(stage: Stage) -> None:
    flow = Flow(stage, "a>stop a>go:c a>leave:k b>both a>both:c stop>both").started()
    assert sorted(flow.play(a="failed")) == ["a", "b", "go"]
    assert stage.record(flow["both"])["pending"] == b"1"
    flow.retry()
    assert flow.play() == ["a", "stop", "both"]
    assert (flow.state, flow.counts) == ("succeeded", {"succeeded": 5, "skipped": 1})


def test_one_that_fails_again_can_be_retried_again(stage: Stage) -> None:
    flow = Flow(stage, "a>b a>c:c").started()
    flow.play(a="failed")
    for _ in range(3):
        flow.retry()
        assert flow.play(a="failed") == ["a"]
        assert (flow.state, flow.counts) == ("failed", {"failed": 1, "succeeded": 1})
    flow.retry()
    assert flow.play() == ["a", "b"]
    assert flow.state == "succeeded"


def test_it_may_be_retried_while_others_still_run(stage: Stage) -> None:
    flow = Flow(stage, "a b").started()
    taken = flow.claims()
    stage.end(taken["a"], "failed")
    assert flow.state == "running"
    assert flow.retry() == "running"
    stage.end(taken["b"])
    assert flow.play() == ["a"]
    assert flow.state == "succeeded"


def test_what_was_cancelled_before_its_turn_waits_for_it_again(stage: Stage) -> None:
    """It ran beside the node whose output it takes, and got none."""
    flow = Flow(stage, "a>b b>c").started()
    taken = flow.claims()
    assert stage.run(produce.cancel(stage.keys, flow["b"], KEEP)) == "cancelled"
    assert flow.retry() == "running"
    assert (flow.states["b"], flow.claims(), flow.counts) == ("blocked", {}, {})
    stage.end(taken["a"], "failed")
    assert flow.state == "failed"
    assert flow.retry() == "running"
    assert flow.play() == ["a", "b", "c"]
    assert (flow.state, flow.counts) == ("succeeded", {"succeeded": 3})


def test_one_that_waits_for_what_was_never_started_is_pending_again(stage: Stage) -> None:
    flow = Flow(stage, "a>b x")
    flow.create()
    flow.start("x")
    assert stage.run(produce.cancel(stage.keys, flow["b"], KEEP)) == "cancelled"
    flow.play()
    assert flow.state == "failed"
    assert flow.retry() == "pending"
    flow.start()
    assert sorted(flow.play()) == ["a", "b"]
    assert flow.state == "succeeded"


def test_a_stopped_one_holds_what_is_retried(stage: Stage) -> None:
    flow = Flow(stage, "a b").started()
    taken = flow.claims()
    stage.end(taken["a"], "failed")
    flow.stop()
    assert flow.retry() == "stopped"
    assert flow.claims() == {}
    assert flow.states["a"] == "stopped"
    flow.start()
    stage.end(taken["b"])
    assert flow.play() == ["a"]


def test_budgets_are_fresh(stage: Stage) -> None:
    flow = Flow(stage, "a").started()
    stage.end(flow.claims()["a"], "retry", b"{}", 0)
    stage.end(flow.claims()["a"], "failed")
    flow.retry()
    assert flow.claims()["a"].attempt == 1


def test_where_nothing_failed_there_is_nothing_to_do(stage: Stage) -> None:
    pending, running, done = (
        Flow(stage, "a").made(),
        Flow(stage, "a").started(),
        Flow(stage, "a>b:c b", ttl=0).started(),
    )
    done.play(a="failed")
    # Its failure was coped with: what came after it has run.
    assert done.state == "succeeded"
    running.claims()
    before = stage.everything()
    assert [one.retry() for one in (pending, done, Flow(stage, "a"))] == ["pending", "succeeded", "missing"]
    assert stage.everything() == before


def test_a_second_retry_adds_nothing(stage: Stage) -> None:
    flow = Flow(stage, fan(1300)).started()
    flow.end("first")
    flow.tend_all()
    while taken := stage.take(limit=500):
        stage.settle(*(stage.outcome(claim, "failed") for claim in taken))
    assert (flow.state, flow.counts["failed"]) == ("failed", 1300)
    assert flow.retry() == flow.retry() == "running"
    flow.tend_all()
    while taken := stage.take(limit=500):
        stage.settle(*(stage.outcome(claim) for claim in taken))
        flow.tend_all()
    assert (flow.state, flow.counts) == ("succeeded", {"succeeded": 1302})


def test_its_key_must_be_free_or_its_own(stage: Stage) -> None:
    flow = Flow(stage, "a", key="k").started()
    flow.play(a="failed")
    other = Flow(stage, "a", key="k").made()
    before = stage.everything()
    assert flow.retry() == "live"
    assert stage.everything() == before
    other.delete()
    assert flow.retry() == "running"
    assert Flow(stage, "a", key="k").create() == "live"


def test_what_was_undone_is_not_retried(stage: Stage) -> None:
    flow = Flow(stage, "a>b u", nodes={"a": {"undo": "u"}}).started()
    flow.end("a")
    flow.end("b", "failed")
    assert flow.retry() == "undone"
    flow.play()
    assert (flow.retry(), flow.state) == ("undone", "failed")


def test_a_fan_out_that_is_under_way_is_not_counted_twice_by_a_retry(stage: Stage) -> None:
    text = " ".join(f"a>n{n}:c" for n in range(1500)) + " " + " ".join(f"n{n}>z" for n in range(1500)) + " a>s"
    flow = Flow(stage, text, nodes={"a": {"queue": "q"}}).started()
    flow.end("a", "failed", ["q"])
    assert len(flow.chores()) == 1
    for _ in range(2):
        flow.retry()
        flow.end("a", "failed", ["q"])
    flow.retry()
    flow.play(["default", "q"])
    assert (flow.state, flow.counts) == ("succeeded", {"succeeded": 1503})


def test_a_node_whose_worker_died_too_often_is_retried(stage: Stage) -> None:
    flow = Flow(stage, "a>b", nodes={"a": {"max_crashes": 1}}).started()
    flow.claims()
    stage.run(consume.reclaim(stage.keys, "w1", True, 10, KEEP))
    assert flow.retry() == "running"
    assert flow.play() == ["a", "b"]
