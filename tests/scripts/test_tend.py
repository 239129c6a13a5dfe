from __future__ import annotations

import pytest

from headrace.protocol import graph as protocol
from headrace.protocol.consume import renew
from tests.scripts.graphs import Flow, fan
from tests.scripts.stage import KEEP, SECOND, Stage


def test_without_chores_there_is_nothing_to_do(stage: Stage) -> None:
    assert stage.run(protocol.tend(stage.keys, KEEP, 500))[0] == 0
    assert stage.everything() == {}


def test_the_oldest_chore_comes_first(stage: Stage) -> None:
    one, two = Flow(stage, fan(1600)).started(), Flow(stage, fan(1600)).started()
    claims = stage.take()
    for claim in claims:
        stage.now += 1
        stage.settle(stage.outcome(claim))
    first = claims[0].id[:15]
    assert len(one.chores()) == 2
    stage.now += 1
    assert one.tend(100) == 2
    mine, other = (one, two) if one.id.startswith(first) else (two, one)
    # The rest of it goes behind the other's: both go on by turns.
    assert mine.id[:15] in mine.chores()[1]
    other.tend_all()
    assert len(stage.ready()) == 3200


@pytest.mark.parametrize("limit", [0, 1, 2, 1000])
def test_each_piece_makes_progress(stage: Stage, limit: int) -> None:
    flow = Flow(stage, "a>b").made()
    flow.cancel()
    assert flow.tend_all(limit) < 10
    assert flow.state == "cancelled"


def test_several_chores_fit_into_one_piece(stage: Stage) -> None:
    flows = [Flow(stage, "a>b").started() for _ in range(5)]
    for flow in flows:
        flow.cancel()
    assert stage.raw(protocol.tend(stage.keys, KEEP, 500))[:2] == [0, 5]
    assert {flow.state for flow in flows} == {"cancelled"}


def test_a_walk_that_takes_several_pieces_is_counted_once(stage: Stage) -> None:
    flow = Flow(stage, fan(1900)).started()
    flow.end("first")
    while flow.tend(150):
        assert flow.now.active == len(stage.ready()) + 1
    assert flow.now.active == len(stage.ready()) == 1900


def test_what_ended_by_a_chore_frees_what_comes_after_it(stage: Stage) -> None:
    width = 1700
    text = " ".join(f"a>j{n} j{n}>z" for n in range(width))
    flow = Flow(stage, text, nodes={f"j{n}": {"role": "join"} for n in range(width)}).started()
    flow.end("a")
    flow.tend_all()
    assert flow.play() == ["z"]
    assert flow.state == "succeeded"


@pytest.mark.mangles
def test_a_chore_that_nobody_knows_is_dropped(stage: Stage) -> None:
    stage.client.zadd(stage.keys("chores"), {"dance:x:1": 1, "": 2, "walk:": 3})
    assert stage.run(protocol.tend(stage.keys, KEEP, 500))[0] == 0
    assert stage.members("chores") == {}


def test_chores_of_later_wait(stage: Stage) -> None:
    flow = Flow(stage, fan(700))
    stage.run(protocol.create(stage.keys, flow.id, flow.graph, 1))
    assert flow.tend() == 0
    stage.now += 3600 * SECOND
    assert flow.tend_all() >= 1
    assert flow.left() == set()


def test_a_workflow_that_is_being_made_is_not_given_up_since_the_clock_was_set_back(stage: Stage) -> None:
    flow = Flow(stage, fan(1500))
    assert stage.run(protocol.create(stage.keys, flow.id, flow.graph, 1)).word == "more"
    before = stage.members("chores")
    stage.register()
    stage.now -= 3600 * SECOND
    stage.run(renew(stage.keys, "w1", 15 * SECOND))
    assert stage.members("chores") == before != {}
