from __future__ import annotations

import pytest

from headrace.model.job import Outcome
from headrace.protocol import consume, produce
from headrace.protocol import graph as protocol
from tests.scripts.graphs import Flow, fan
from tests.scripts.stage import KEEP, SECOND, Stage

KINDS = (
    "succeeded", "failed", "cancelled", "corrupt", "crashed", "retry", "snoozed", "released", "interrupted", "parked",
    "skipped", "grown",
)  # fmt: skip


def everywhere(stage: Stage) -> Flow:
    """One with a node of each state."""
    nodes = {
        "late": {"delay": SECOND}, "low": {"queue": "low"}, "parked": {"task": "later"}, "done": {"undo": "u"},
    }  # fmt: skip
    flow = Flow(stage, "run>b late low parked done bad>b u no", nodes=nodes, key="k", on_failure="no").started()
    taken = flow.claims()
    stage.end(taken["parked"], "parked")
    stage.end(taken["done"])
    stage.end(taken["bad"], "failed")
    return flow


def test_it_leaves_with_all_that_it_owns_in_whatever_state(stage: Stage) -> None:
    flow = everywhere(stage)
    running = stage.members("claims:w1")
    assert flow.delete() == "ok"
    assert flow.left() == set()
    assert (stage.ready("low"), stage.members("scheduled"), stage.names("parking")) == ([], {}, set())
    assert stage.members("claims:w1") == running
    assert stage.members("flows:|") == {}
    assert not stage.client.exists(stage.keys("live:shop:k"))
    assert flow.delete() == "missing"


def test_what_runs_is_asked_to_stop(stage: Stage) -> None:
    flow = Flow(stage, "a").started()
    flow.claims()
    pubsub = stage.subscribe(stage.keys.mail("w1"))
    flow.delete()
    assert pubsub.get_message(timeout=20)["data"].decode() == flow["a"]
    assert stage.names("cancels:w1") == {flow["a"]}
    pubsub.close()


@pytest.mark.parametrize("kind", KINDS)
def test_no_outcome_brings_anything_back(stage: Stage, kind: str) -> None:
    flow = Flow(stage, "a>b a>c:c").started()
    claim = flow.claims()["a"]
    flow.delete()
    stage.settle(stage.outcome(claim, kind, b"{}", KEEP))
    assert flow.left() == set()
    assert stage.members("claims:w1") == {}
    assert stage.names("cancels:w1") == set()
    assert stage.run(consume.retire(stage.keys, "w1"))


def test_neither_notes_nor_reclaim_nor_promotion_bring_anything_back(stage: Stage) -> None:
    flow = everywhere(stage)
    claim = Outcome(flow["run"], stage.members("claims:w1")[flow["run"]], "succeeded")
    flow.delete()
    note = consume.Note(claim.id, claim.token, 0.5, "half", ("line",))
    assert stage.run(consume.note(stage.keys, "w1", [note], 10, stage.next())) == 0
    stage.now += KEEP
    stage.run(consume.promote(stage.keys, 10))
    stage.run(consume.unpark(stage.keys, "later", 10, ["default"]))
    stage.run(consume.reclaim(stage.keys, "w1", True, 10, KEEP))
    assert stage.run(produce.watch(stage.keys, claim.id, 0)).state is None
    assert flow.left() == set()


def test_no_verb_of_its_users_brings_anything_back(stage: Stage) -> None:
    flow = everywhere(stage)
    claim = Outcome(flow["run"], stage.members("claims:w1")[flow["run"]], "succeeded")
    flow.delete()
    before = stage.everything()
    words = [flow.start(), flow.stop(), flow.cancel(), flow.retry(), flow.expire(5), flow.start("b")]
    assert words == ["missing"] * 6
    assert stage.run(protocol.watch_flow(stage.keys, flow.id, SECOND)) is None
    assert stage.run(protocol.reserve(stage.keys, "w1", claim.id, claim.token, 3)) == 0
    assert stage.run(produce.cancel(stage.keys, claim.id, KEEP)) == "missing"
    assert stage.run(produce.rerun(stage.keys, claim.id, "r")) == "missing"
    assert stage.everything() == before


def test_a_large_one_is_removed_a_piece_at_a_time_and_nothing_of_it_starts_meanwhile(stage: Stage) -> None:
    flow = Flow(stage, fan(2300)).started()
    flow.end("first")
    flow.tend_all()
    running = stage.take(limit=3)
    flow.delete()
    assert (len(flow.chores()), flow.views()) == (1, set())
    assert stage.ready() != []
    assert stage.take(limit=100) == []
    stage.end(running[0], "retry", b"", 0)
    stage.end(running[1])
    flow.tend_all()
    assert (stage.ready(), flow.chores()) == ([], [])
    stage.end(running[2], "failed")
    assert flow.left() == set()


@pytest.mark.parametrize("verb", ["start", "cancel", "retry"])
def test_chores_that_are_left_of_it_end_with_it(stage: Stage, verb: str) -> None:
    flow = Flow(stage, fan(2300)).started()
    flow.end("first")
    if verb == "cancel":
        flow.cancel()
    if verb == "retry":
        flow.tend_all()
        while taken := stage.take(limit=500):
            stage.settle(*(stage.outcome(claim, "failed") for claim in taken))
        flow.retry()
    flow.delete()
    flow.tend_all()
    assert (flow.left(), stage.ready(), flow.chores()) == (set(), [], [])


def test_what_was_held_leaves_too(stage: Stage) -> None:
    flow = Flow(stage, fan(2300)).started()
    flow.end("first")
    flow.tend_all()
    flow.stop()
    while stage.ready():
        stage.take()
    flow.delete()
    flow.tend_all()
    assert flow.left() == set()


def test_whoever_waits_for_it_or_for_a_node_is_told(stage: Stage) -> None:
    flow = Flow(stage, "a").started()
    stage.run(protocol.watch_flow(stage.keys, flow.id, KEEP))
    stage.run(produce.watch(stage.keys, flow["a"], KEEP))
    pubsub = stage.subscribe(stage.keys.done(flow.id))
    pubsub.subscribe(stage.keys.done(flow["a"]))
    flow.delete()
    told: set[str] = set()
    while len(told) < 2:
        message = pubsub.get_message(timeout=20)
        assert message is not None
        if message["type"] == "message":
            told.add(message["channel"].decode().rpartition(":")[2])
    assert told == {flow.id, flow["a"]}
    assert stage.members("waited") == {}
    pubsub.close()


def test_one_that_is_not_complete_can_be_removed(stage: Stage) -> None:
    flow = Flow(stage, fan(1100))
    stage.run(protocol.create(stage.keys, flow.id, flow.graph, 1))
    assert flow.delete() == "ok"
    stage.now += 3600 * SECOND
    flow.tend_all()
    assert flow.left() == set()


def test_the_key_of_another_stays_its_own(stage: Stage) -> None:
    old = Flow(stage, "a", key="k").started()
    old.play()
    new = Flow(stage, "a", key="k").made()
    old.delete()
    assert Flow(stage, "a", key="k").create() == "live"
    assert new.state == "pending"
