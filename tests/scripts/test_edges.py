"""The included script ``edges``: the children of a node that ended."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from headrace.model.job import Outcome
from headrace.protocol import consume
from tests.scripts.graphs import Flow, fan
from tests.scripts.stage import KEEP, Stage

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
