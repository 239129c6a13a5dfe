"""The included script ``edges``: the children of a node that ended."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from headrace.model.job import Outcome
from headrace.protocol import consume, produce
from headrace.protocol import graph as protocol
from tests.scripts.graphs import Flow, fan
from tests.scripts.stage import KEEP, LEVEL, SECOND, Stage

ENDINGS = ("failed", "cancelled", "corrupt")


def test_the_last_of_several_parents_lines_a_child_up_once(stage: Stage) -> None:
    flow = Flow(stage, "a>c b>c c>d").started()
    both = flow.claims()
    answer = stage.settle(*(stage.outcome(claim) for claim in both.values()))
    assert answer.stale == []
    assert stage.ready() == [flow["c"]]
    assert flow.play() == ["c", "d"]
    assert (flow.state, flow.counts) == ("succeeded", {"succeeded": 4})


def test_parents_that_end_in_different_settles_line_a_child_up_once(stage: Stage) -> None:
    flow = Flow(stage, "a>c b>c").started()
    both = flow.claims()
    stage.end(both["a"])
    assert flow.states["c"] == "blocked"
    stage.end(both["b"])
    assert stage.ready() == [flow["c"]]


def test_a_child_is_counted_down_by_the_newest_start_only(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    old = flow.claims()["a"]
    stage.run(consume.reclaim(stage.keys, "w1", True, 500, KEEP))
    assert stage.settle(Outcome(old.id, old.token, "succeeded", b"late", KEEP)).stale == [old.id]
    assert flow.states == {"a": "ready", "b": "blocked"}
    new = flow.claims(owner="w2")["a"]
    stage.end_as("w2", new)
    assert flow.states == {"a": "succeeded", "b": "ready"}


@pytest.mark.parametrize("kind", ENDINGS)
def test_after_a_failure_each_policy_does_its_own(stage: Stage, kind: str) -> None:
    flow = Flow(stage, "a>stop a>go:c a>leave:k leave>under leave>copes:c").started()
    assert flow.play(a=kind) == ["a", "go", "copes"]
    state = {"corrupt": "quarantined"}.get(kind, kind)
    assert flow.states == {
        "a": state, "stop": "blocked", "go": "succeeded", "leave": "skipped", "under": "skipped", "copes": "succeeded"
    }  # fmt: skip
    assert (flow.state, flow.counts) == ("failed", {state: 1, "skipped": 2, "succeeded": 2})
    assert flow.now.failed_node == "a"


def test_after_a_success_the_policy_does_not_matter(stage: Stage) -> None:
    flow = Flow(stage, "a>b a>c:c a>d:k").started()
    assert flow.play() == ["a", "b", "c", "d"]
    assert flow.state == "succeeded"


def test_a_skipped_node_skips_what_comes_after_it_also_through_joins(stage: Stage) -> None:
    flow = Flow(stage, "a>b b>j j>c c>d:c", nodes={"j": {"role": "join"}}).started()
    assert flow.play(a="skipped") == ["a", "d"]
    assert flow.states == {"a": "skipped", "b": "skipped", "j": "skipped", "c": "skipped", "d": "succeeded"}
    assert (flow.state, flow.counts) == ("succeeded", {"skipped": 3, "succeeded": 1})


def test_a_chain_of_joins_is_walked_without_recursion(stage: Stage) -> None:
    names = [f"j{n}" for n in range(1500)]
    text = "a>j0 " + " ".join(f"{a}>{b}" for a, b in pairwise(names)) + " j1499>z"
    flow = Flow(stage, text, nodes={name: {"role": "join"} for name in names}).started()
    assert flow.play() == ["a", "z"]
    assert flow.state == "succeeded"


def test_an_alien_record_among_the_children_does_not_stop_the_others(stage: Stage) -> None:
    flow = Flow(stage, "a>b a>c").started()
    stage.client.delete(stage.keys.job(flow["b"]))
    stage.client.set(stage.keys.job(flow["b"]), "alien")
    flow.end("a")
    assert stage.ready() == [flow["c"]]
    flow.delete()


def test_a_fan_in_is_linear(stage: Stage) -> None:
    """Nobody looks at siblings: what a parent's end costs does not depend on how many there are."""
    costs: list[float] = []
    for width in (50, 450):
        flow = Flow(stage, fan(width)).started()
        flow.end("first")
        flow.tend_all()
        taken = stage.take(limit=500)
        before = stage.commands()
        stage.settle(*(stage.outcome(claim) for claim in taken))
        costs.append((stage.commands() - before) / width)
        assert stage.ready() == [flow["last"]]
        flow.delete()
    assert costs[1] <= costs[0]
    assert costs[1] < 8


def test_many_workers_that_end_siblings_at_once_start_the_child_once(stage: Stage) -> None:
    flow = Flow(stage, fan(240)).started()
    flow.end("first")
    flow.tend_all()
    owners = [stage.register(f"w{n}") for n in range(2, 10)]
    shares = {owner: stage.claim(owner, 30).jobs for owner in owners}
    calls = [
        consume.settle(stage.keys, owner, n, [(stage.outcome(claim), 0)], KEEP).at(stage.now)
        for owner, share in shares.items()
        for n, claim in enumerate(share, 1)
    ]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda call: stage.client.execute_command("EVAL", call.script.text, *call.command()[2:]), calls))
    assert stage.ready() == [flow["last"]]
    assert flow.play() == ["last"]
    assert (flow.state, flow.counts) == ("succeeded", {"succeeded": 242})


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
