from __future__ import annotations

import pytest

from headrace.model.job import Outcome
from headrace.protocol import consume
from headrace.protocol import graph as protocol
from tests.scripts.graphs import Flow, grafted
from tests.scripts.stage import KEEP, SECOND, Stage


def test_what_was_added_runs_before_what_comes_after(stage: Stage) -> None:
    flow = Flow(stage, "a>b b>c").started()
    claim = flow.claims()["a"]
    flow.grow(claim, "x>y z")
    assert flow.now.total == 3
    stage.end(claim, "grown", b"own")
    assert (flow.now.total, flow.now.active) == (6, 2)
    assert flow.play() == ["+x", "+z", "+y", "b", "c"]
    assert (flow.state, flow.counts, flow.output("a")) == ("succeeded", {"succeeded": 6}, b"own")


def test_nothing_added_is_done_at_once(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    claim = flow.claims()["a"]
    flow.grow(claim, "", gather=True)
    stage.end(claim, "grown")
    assert flow.play() == ["b"]
    assert (flow.state, flow.now.total) == ("succeeded", 2)


def test_it_is_not_reached_before_the_node_is_settled_as_grown(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    claim = flow.claims()["a"]
    flow.grow(claim, "x")
    assert flow.claims() == {}
    stage.end(claim, "succeeded")
    assert flow.play() == ["b"]
    assert (flow.state, flow.counts, flow.states["+x"]) == ("succeeded", {"succeeded": 2}, "blocked")


@pytest.mark.parametrize(("first", "second"), [("x y z", "x"), ("x", "x y z"), ("x>y y>z", "z x>y"), ("x y", "")])
def test_a_second_attempt_takes_the_place_of_the_first(stage: Stage, first: str, second: str) -> None:
    flow = Flow(stage, "a>b").started()
    claim = flow.claims()["a"]
    flow.grow(claim, first)
    stage.end(claim, "retry", b"", 0)
    claim = flow.claims()["a"]
    for name in [name for name in flow.names if name.startswith("+")]:
        del flow.names[name]
    flow.grow(claim, second)
    stage.end(claim, "grown")
    started = flow.play()
    assert sorted(started) == sorted(["b", *(name for name in flow.names if name.startswith("+") and name != "+J")])
    assert (flow.state, flow.now.total, flow.now.progress) == ("succeeded", len(started) + 1, 1.0)
    flow.delete()
    assert flow.left() == set()


def test_what_a_first_attempt_left_over_is_not_cancelled_with_the_rest(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    claim = flow.claims()["a"]
    flow.grow(claim, "x y z")
    stage.end(claim, "retry", b"", 0)
    claim = flow.claims()["a"]
    flow.grow(claim, "x")
    stage.end(claim, "grown")
    flow.cancel()
    flow.tend_all()
    assert (flow.state, flow.counts, flow.now.total) == ("cancelled", {"succeeded": 1, "cancelled": 2}, 3)


def test_an_older_start_stores_nothing(stage: Stage) -> None:
    flow = Flow(stage, "a").started()
    old = flow.claims()["a"]
    first = stage.run(protocol.reserve(stage.keys, "w1", old.id, old.token, 2))
    stage.run(consume.reclaim(stage.keys, "w1", True, 10, KEEP))
    flow.claims(owner="w2")
    before = stage.everything()
    for owner in ("w1", "w2"):
        call, _ = protocol.graft(stage.keys, owner, old.id, old.token, grafted("x"), first - 1, 1)
        assert stage.run(call) == "stale"
    assert stage.everything() == before


def test_a_workflow_that_is_gone_gets_nothing_back(stage: Stage) -> None:
    flow = Flow(stage, "a").started()
    claim = flow.claims()["a"]
    first = stage.run(protocol.reserve(stage.keys, "w1", claim.id, claim.token, 2))
    flow.delete()
    call, _ = protocol.graft(stage.keys, "w1", claim.id, claim.token, grafted("x"), first - 1, 1)
    assert stage.run(call) == "stale"
    assert flow.left() == set()


def test_a_repeat_changes_nothing(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    claim = flow.claims()["a"]
    flow.grow(claim, "x>y")
    before = stage.everything()
    flow.grow(claim, "x>y")
    assert stage.everything() == before


def test_more_than_one_call_holds_is_stored_in_chunks(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    claim = flow.claims()["a"]
    flow.grow(claim, " ".join(f"n{n}" for n in range(1200)), gather=True)
    stage.settle(stage.outcome(claim, "grown"))
    flow.tend_all()
    assert len(flow.play()) == 1201
    assert (flow.state, flow.counts) == ("succeeded", {"succeeded": 1202})


def test_what_was_added_grows_too(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    claim = flow.claims()["a"]
    flow.grow(claim, "x>y")
    stage.end(claim, "grown")
    claim = flow.claims()["+x"]
    flow.grow(claim, "p q")
    stage.end(claim, "grown")
    assert flow.play() == ["+p", "+q", "+y", "b"]
    assert flow.state == "succeeded"


def test_the_failure_of_what_was_added_fails_the_workflow(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    claim = flow.claims()["a"]
    flow.grow(claim, "x y")
    stage.end(claim, "grown")
    flow.play(**{"+x": "failed"})
    assert (flow.state, flow.states["b"], flow.now.failed_node) == ("failed", "blocked", "x")
    flow.retry()
    assert flow.play() == ["+x", "b"]
    assert flow.state == "succeeded"


def test_what_an_earlier_failure_has_counted_is_not_counted_again_by_the_join(stage: Stage) -> None:
    flow = Flow(stage, "a>go:c a>both:c a>s s>both").started()
    flow.play(a="failed")
    flow.retry()
    claim = flow.claims()["a"]
    flow.grow(claim, "x")
    stage.end(claim, "grown")
    assert flow.play() == ["+x", "s", "both"]
    assert (flow.state, flow.counts) == ("succeeded", {"succeeded": 5})


def test_what_grows_while_it_is_stopped_waits_for_the_start(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    claim = flow.claims()["a"]
    flow.stop()
    flow.grow(claim, "x")
    stage.end(claim, "grown")
    assert flow.claims() == {}
    flow.start()
    assert flow.play() == ["+x", "b"]


def test_a_repeated_settle_links_once(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    claim = flow.claims()["a"]
    flow.grow(claim, "x")
    call = consume.settle(stage.keys, "w1", stage.next(), [(stage.outcome(claim, "grown"), 0)], KEEP).at(stage.now)
    stage.run(call)
    assert stage.run(call).repeated
    assert stage.settle(Outcome(claim.id, claim.token, "grown", b"", SECOND)).stale == [claim.id]
    assert flow.now.total == 3
    assert flow.play() == ["+x", "b"]


def test_what_the_server_forgot_of_it_lets_the_node_run_again(stage: Stage) -> None:
    """Settled as a success, what follows would run without what was added."""
    flow = Flow(stage, "a>b").started()
    claim = flow.claims()["a"]
    stage.end(claim, "grown", b"own")
    assert flow.states["a"] == "ready"
    record = stage.record(claim.id)
    assert (record["interruptions"], "crashes" in record) == (b"1", False)
    claim = flow.claims()["a"]
    flow.grow(claim, "x")
    stage.end(claim, "grown", b"own")
    assert flow.play() == ["+x", "b"]
    assert flow.state == "succeeded"


def test_without_a_reservation_nothing_is_stored(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    claim = flow.claims()["a"]
    graft = grafted("x y")
    before = stage.everything()
    call, _ = protocol.graft(stage.keys, "w1", claim.id, claim.token, graft, 7, 1)
    assert stage.run(call) == "unreserved"
    assert stage.everything() == before
