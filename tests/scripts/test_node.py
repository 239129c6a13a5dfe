"""The included script ``node``: what an end means for the nodes after it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import msgspec
import pytest

from headrace.model.job import Outcome
from headrace.protocol import consume, produce
from tests.scripts.graphs import Flow, fan, grafted
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


def test_a_repeated_settle_counts_nothing_twice(stage: Stage) -> None:
    flow = Flow(stage, "a>c b>c").started()
    both = flow.claims()
    call = consume.settle(stage.keys, "w1", stage.next(), [(stage.outcome(both["a"]), 0)], KEEP, stage.now)
    stage.run(call)
    before = stage.everything()
    assert stage.run(call).repeated
    # The same end under another number, as a dispatcher sends it that was taken for dead.
    assert stage.settle(stage.outcome(both["a"])).stale == [flow["a"]]
    after = stage.everything()
    after["0"]["owner"]["w1"]["settled"] = before["0"]["owner"]["w1"]["settled"]
    assert after == before


def test_a_child_is_counted_down_by_the_newest_start_only(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    old = flow.claims()["a"]
    stage.run(consume.reclaim(stage.keys, "w1", True, 500, KEEP, stage.now))
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


def test_a_workflow_whose_failures_are_all_coped_with_succeeds(stage: Stage) -> None:
    flow = Flow(stage, "a>b:c b>c").started()
    assert flow.play(a="failed") == ["a", "b", "c"]
    assert (flow.state, flow.counts) == ("succeeded", {"failed": 1, "succeeded": 2})


def test_a_failed_leaf_fails_its_workflow(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    flow.play(b="failed")
    assert flow.state == "failed"


def test_a_skipped_node_skips_what_comes_after_it_also_through_joins(stage: Stage) -> None:
    flow = Flow(stage, "a>b b>j j>c c>d:c", nodes={"j": {"role": "join"}}).started()
    assert flow.play(a="skipped") == ["a", "d"]
    assert flow.states == {"a": "skipped", "b": "skipped", "j": "skipped", "c": "skipped", "d": "succeeded"}
    assert (flow.state, flow.counts) == ("succeeded", {"skipped": 3, "succeeded": 1})


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
    stage.run(consume.promote(stage.keys, 10, stage.now))
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


def test_outcomes_that_are_no_end_keep_the_workflow_running(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    for kind in ("retry", "snoozed", "released", "interrupted", "crashed"):
        stage.end(flow.claims()["a"], kind, b"", 0)
        assert (flow.state, flow.now.active, flow.states) == ("running", 1, {"a": "ready", "b": "blocked"}), kind
    stage.end(flow.claims()["a"], "parked")
    assert (flow.now.active, flow.states["a"]) == (1, "parked")
    stage.run(consume.unpark(stage.keys, "add", 10, ["default"], stage.now))
    assert flow.play() == ["a", "b"]


def test_a_crash_budget_that_is_used_up_fails_the_workflow(stage: Stage) -> None:
    flow = Flow(stage, "a>b", nodes={"a": {"max_crashes": 1}}).started()
    flow.claims()
    stage.run(consume.reclaim(stage.keys, "w1", True, 500, KEEP, stage.now))
    assert (flow.state, flow.states["a"], flow.now.failed_node) == ("failed", "quarantined", "a")


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


def test_a_callback_that_waits_for_its_worker_is_in_one_place(stage: Stage) -> None:
    flow = Flow(stage, "a no", on_failure="no", nodes={"no": {"task": "later"}}).started()
    flow.end("a", "failed")
    flow.end("no", "parked")
    flow.retry()
    flow.end("a", "failed")
    assert stage.members("parked:later").keys() == {flow["no"]}
    assert stage.ready() == []


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


def test_whoever_waits_for_a_node_is_told(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    stage.run(produce.watch(stage.keys, flow["a"], SECOND, stage.now))
    pubsub = stage.subscribe(stage.keys.done(flow["a"]))
    flow.end("a")
    assert pubsub.get_message(timeout=20)["data"] == b"succeeded"
    pubsub.close()


def test_a_cancelled_node_frees_nothing_before_its_workflow_is_started(stage: Stage) -> None:
    flow = Flow(stage, "a>b:c c").made()
    assert stage.run(produce.cancel(stage.keys, flow["a"], KEEP, stage.now)) == "cancelled"
    assert (flow.claims(), flow.state) == ({}, "pending")
    assert flow.start() == "running"
    assert sorted(flow.play()) == ["b", "c"]
    assert (flow.state, flow.counts) == ("succeeded", {"cancelled": 1, "succeeded": 2})


def test_results_of_nodes_are_their_workflows_and_count_for_no_cap(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    flow.play()
    assert flow.output("a") == b"a"
    assert (stage.bytes(), stage.members("expires"), stage.members("succeeded")) == (0, {}, {})


def commands(stage: Stage) -> int:
    """How many commands the server has run, those of scripts included."""
    return sum(facts["calls"] for facts in stage.client.info("commandstats").values())


def test_a_fan_in_is_linear(stage: Stage) -> None:
    """Nobody looks at siblings: what a parent's end costs does not depend on how many there are."""
    costs: list[float] = []
    for width in (50, 450):
        flow = Flow(stage, fan(width)).started()
        flow.end("first")
        flow.tend_all()
        taken = stage.take(limit=500)
        before = commands(stage)
        stage.settle(*(stage.outcome(claim) for claim in taken))
        costs.append((commands(stage) - before) / width)
        assert stage.ready() == [flow["last"]]
        flow.delete()
    assert costs[1] <= costs[0]
    assert costs[1] < 8


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
    before = commands(stage)
    if verb == "roots":
        flow.stop()
        flow.start()
    elif verb != "walk":
        assert getattr(flow, verb)() in ("asked", "running", "ok")
    assert commands(stage) - before < 4000
    before = commands(stage)
    flow.tend(500)
    assert commands(stage) - before < 4000
    flow.tend_all()


def test_many_workers_that_end_siblings_at_once_start_the_child_once(stage: Stage) -> None:
    flow = Flow(stage, fan(240)).started()
    flow.end("first")
    flow.tend_all()
    owners = [stage.register(f"w{n}") for n in range(2, 10)]
    shares = {owner: stage.claim(owner, 30).jobs for owner in owners}
    calls = [
        consume.settle(stage.keys, owner, n, [(stage.outcome(claim), 0)], KEEP, stage.now)
        for owner, share in shares.items()
        for n, claim in enumerate(share, 1)
    ]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda call: stage.client.execute_command("EVAL", call.script.text, *call.command()[2:]), calls))
    assert stage.ready() == [flow["last"]]
    assert flow.play() == ["last"]
    assert (flow.state, flow.counts) == ("succeeded", {"succeeded": 242})
