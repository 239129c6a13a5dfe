from __future__ import annotations

import pytest

from headrace.model.ids import code_of, node_id
from headrace.model.workflow import Graph
from headrace.protocol import graph as protocol
from headrace.protocol.graph import CHUNK
from tests.scripts.graphs import Flow, fan, graph
from tests.scripts.stage import SECOND, Stage

HOUR = 3600 * SECOND
VIEWS = {"|", "|pending", "shop|", "shop|pending"}


def chunk(flow: Flow, first: int) -> protocol.Created:
    return flow.stage.run(protocol.create(flow.stage.keys, flow.id, flow.graph, first).at(flow.stage.now))


def test_a_complete_one_is_stored_listed_and_waits(stage: Stage) -> None:
    flow = Flow(stage, "a>b b>c:k", args=b"\x92\x90\x80", globals=b"\x80", ttl=5 * SECOND)
    assert flow.create() == "ok"
    assert flow.views() == VIEWS
    assert stage.members("flows:|") == {flow.id: stage.now}
    record = flow.now
    assert (record.state, record.definition, record.total, record.active, record.created_us) == (
        "pending", "shop", 3, 0, stage.now
    )  # fmt: skip
    assert (record.started_us, record.finished_us, record.lapses_us, record.ttl) == (0, 0, 0, 5 * SECOND)
    assert flow.states == {"a": "blocked", "b": "blocked", "c": "blocked"}
    assert stage.ready() == []
    assert stage.record(flow["b"])["children"] == f"{code_of(3)}k".encode()


def test_a_repeat_after_a_lost_reply_changes_nothing(stage: Stage) -> None:
    flow = Flow(stage, "a>b", key="k").made()
    before = stage.everything()
    stage.now += SECOND
    assert chunk(flow, 1) == protocol.Created("ok", flow.id, 3)
    assert stage.everything() == before


def test_a_repeat_does_not_set_a_running_one_back(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    flow.end("a")
    before = stage.everything()
    assert chunk(flow, 1).word == "ok"
    assert stage.everything() == before


def test_a_large_one_comes_in_chunks_and_is_not_seen_before_the_last(stage: Stage) -> None:
    flow = Flow(stage, fan(2 * CHUNK + 100))
    made = chunk(flow, 1)
    assert (made.word, made.next) == ("more", CHUNK + 1)
    assert flow.views() == set()
    assert flow.start() == "missing"
    assert flow.chores() == [f"abandon:{flow.id}"]
    assert chunk(flow, CHUNK + 1).next == 2 * CHUNK + 1
    assert chunk(flow, CHUNK + 1).next == 2 * CHUNK + 1
    assert chunk(flow, 2 * CHUNK + 1).word == "ok"
    assert flow.chores() == []
    assert flow.views() == {"|", "|pending", "fan|", "fan|pending"}
    assert flow.now.total == 2 * CHUNK + 102


def test_one_that_was_not_completed_within_an_hour_is_removed(stage: Stage) -> None:
    flow = Flow(stage, fan(2 * CHUNK + 100))
    chunk(flow, 1)
    stage.now += HOUR // 2
    chunk(flow, CHUNK + 1)
    stage.now += HOUR - 1
    assert flow.tend() == 0
    assert stage.state(node_id(flow.id, 1)) == "blocked"
    stage.now += 1
    flow.tend_all()
    assert flow.left() == set()
    assert flow.chores() == []


def test_a_creator_that_goes_on_after_that_begins_anew(stage: Stage) -> None:
    flow = Flow(stage, fan(2 * CHUNK + 100))
    chunk(flow, 1)
    stage.now += HOUR
    flow.tend_all()
    assert chunk(flow, CHUNK + 1) == protocol.Created("more", flow.id, 1)
    assert flow.left() == set()
    flow.made()
    assert stage.state(node_id(flow.id, 1)) == "blocked"


def test_large_arguments_shorten_a_chunk(stage: Stage) -> None:
    flow = Flow(stage, "a>b b>c", nodes={name: {"args": b"x" * 600_000} for name in "abc"})
    assert [chunk(flow, first).next for first in (1, 3)] == [3, 4]
    assert flow.state == "pending"


def test_one_of_no_nodes_ends_when_it_starts(stage: Stage) -> None:
    flow = Flow(stage, Graph("shop", ())).made()
    assert flow.start() == "succeeded"


def test_a_key_has_one_live_workflow(stage: Stage) -> None:
    first, second = Flow(stage, "a", key="k").made(), Flow(stage, "a>b", key="k")
    assert chunk(second, 1) == protocol.Created("live", first.id, 3)
    assert second.left() == set()
    first.start()
    assert second.create() == "live"
    first.play()
    assert second.create() == "ok"


def test_a_key_is_its_definitions(stage: Stage) -> None:
    first = Flow(stage, "a", key="k").made()
    other = graph("a", key="k")
    second = Flow(stage, Graph("other", other.nodes, key="k"))
    assert (first.create(), second.create()) == ("ok", "ok")


@pytest.mark.parametrize("end", ["failed", "cancelled", "deleted"])
def test_whatever_ends_a_workflow_frees_its_key(stage: Stage, end: str) -> None:
    first = Flow(stage, "a", key="k").started()
    if end == "failed":
        first.play(a="failed")
    elif end == "cancelled":
        first.cancel()
        first.tend_all()
    else:
        first.delete()
    assert Flow(stage, "a", key="k").create() == "ok"


def test_of_two_creators_of_a_key_the_first_that_is_complete_wins(stage: Stage) -> None:
    plan = fan(2 * CHUNK + 100)
    keyed = Graph(plan.definition, plan.nodes, key="k")
    one, two = Flow(stage, keyed), Flow(stage, keyed)
    for first in (1, CHUNK + 1):
        assert chunk(one, first).word == chunk(two, first).word == "more"
    assert chunk(two, 2 * CHUNK + 1).word == "ok"
    assert chunk(one, 2 * CHUNK + 1) == protocol.Created("live", two.id, 2 * CHUNK + 103)
    # Its reply was lost.
    assert chunk(one, 2 * CHUNK + 1) == protocol.Created("live", two.id, 2 * CHUNK + 103)
    two.tend_all()
    assert one.left() == set()
    assert two.state == "pending"
