"""The included script ``begin``: roots and what was held, both a bounded number at a time."""

from __future__ import annotations

from headrace.protocol import graph as protocol
from headrace.protocol import produce
from tests.scripts.graphs import Flow
from tests.scripts.stage import KEEP, LEVEL, SECOND, Stage


def test_roots_line_up_by_their_own_facts(stage: Stage) -> None:
    flow = Flow(stage, "a b c", nodes={"b": {"delay": SECOND}, "c": {"queue": "q", "priority": 1}}).started()
    assert flow.states == {"a": "ready", "b": "scheduled", "c": "ready"}
    assert stage.members("scheduled") == {flow["b"]: stage.now + SECOND}
    assert flow.now.active == 3


def test_a_root_that_was_cancelled_alone_stays_so(stage: Stage) -> None:
    flow = Flow(stage, "a b").made()
    stage.run(produce.cancel(stage.keys, flow["a"], 0))
    flow.start()
    assert flow.states == {"a": "cancelled", "b": "ready"}
    flow.play()
    assert (flow.state, flow.counts) == ("failed", {"cancelled": 1, "succeeded": 1})


def test_tending_goes_on_with_the_roots_a_piece_at_a_time(stage: Stage) -> None:
    flow = Flow(stage, " ".join(f"n{n}" for n in range(1300))).made()
    stage.run(protocol.start(stage.keys, flow.id))
    first = len(stage.ready())
    flow.tend(100)
    assert first < len(stage.ready()) <= first + 100
    flow.tend_all()
    assert (len(stage.ready()), flow.now.active) == (1300, 1300)


def test_arguments_edges_and_options_are_as_they_were_and_budgets_are_fresh(stage: Stage) -> None:
    facts = {
        "priority": 1,
        "at_most_once": True,
        "options": b"\x81",
        "key": "k",
        "max_crashes": 2,
        "args": b"\x92\x91\x01\x80",
    }
    flow = Flow(stage, "a>b", nodes={"a": facts}).started()
    before = stage.record(flow["a"])
    stage.end(flow.claims()["a"], "snoozed", b"", 0)
    stage.end(flow.claims()["a"], "failed", b"{}")
    flow.retry()
    after = stage.record(flow["a"])
    assert after.keys() - before.keys() == {"token", "released"}
    assert all(after[name] == value for name, value in before.items())
    assert stage.members("ready:default") == {flow["a"]: stage.now - LEVEL}


def test_a_delay_is_not_waited_for_again(stage: Stage) -> None:
    flow = Flow(stage, "a>b", nodes={"b": {"delay": SECOND}}).started()
    flow.end("a")
    stage.run(produce.cancel(stage.keys, flow["b"], KEEP))
    assert flow.state == "failed"
    flow.retry()
    assert flow.play() == ["b"]


def test_before_the_start_it_waits_for_it(stage: Stage) -> None:
    flow = Flow(stage, "a").made()
    stage.run(produce.cancel(stage.keys, flow["a"], KEEP))
    assert flow.retry() == "pending"
    assert (flow.claims(), flow.states["a"]) == ({}, "stopped")
    flow.start()
    assert flow.play() == ["a"]
    assert flow.state == "succeeded"


def test_a_node_is_not_rerun_apart_from_its_workflow(stage: Stage) -> None:
    flow = Flow(stage, "a").started()
    flow.play(a="failed")
    before = stage.everything()
    assert stage.run(produce.rerun(stage.keys, flow["a"], "r")) == "node"
    assert stage.everything() == before


def test_a_failed_node_is_among_what_failed_until_it_runs_again(stage: Stage) -> None:
    flow = Flow(stage, "a>c b>c").started()
    claims = flow.claims()
    stage.end(claims["a"], "failed", b"{}")
    stage.end(claims["b"], "corrupt", b"{}")
    assert stage.members("failed") == {flow["a"]: stage.now}
    assert stage.members("quarantined") == {flow["b"]: stage.now}
    assert stage.members("expires") == {}
    flow.retry()
    assert stage.members("failed") == stage.members("quarantined") == {}
    stage.end(flow.claims()["a"], "failed", b"{}")
    stage.run(protocol.delete(stage.keys, flow.id))
    assert stage.members("failed") == {}
