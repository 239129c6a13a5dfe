from __future__ import annotations

from headrace.model.workflow import Graph
from headrace.protocol import graph as protocol
from tests.scripts.graphs import Flow, fan, lapse
from tests.scripts.stage import SECOND, Stage

MINUTE = 60 * SECOND


def ended(stage: Stage, plan: str = "a>b", **facts: object) -> Flow:
    flow = Flow(stage, plan, **{"ttl": SECOND} | facts).started()
    flow.play()
    return flow


def test_those_whose_time_is_over_leave_wholly(stage: Stage) -> None:
    gone = [ended(stage) for _ in range(3)]
    stage.now += SECOND
    stays = ended(stage)
    assert stage.run(protocol.lapse(stage.keys, 500)) == (3, stage.now, stays.now.lapses_us)
    for flow in gone:
        assert (flow.left(), flow.record) == (set(), None)
    assert stage.members("flows:|").keys() == {stays.id}
    assert stage.run(protocol.flow_count(stage.keys)) == 1


def test_no_more_leave_than_asked_for(stage: Stage) -> None:
    flows = [ended(stage) for _ in range(5)]
    stage.now += SECOND
    assert lapse(stage, 2) == 2
    assert [flow.record is None for flow in flows] == [True, True, False, False, False]
    assert [lapse(stage, n) for n in (0, 500, 500)] == [0, 3, 0]


def test_one_that_runs_is_never_removed_however_old(stage: Stage) -> None:
    flow = Flow(stage, "a>b", ttl=SECOND).started()
    claim = flow.claims()["a"]
    stage.now += 10**6 * SECOND
    assert lapse(stage, 10) == 0
    stage.end(claim)
    stage.register()
    flow.play()
    assert flow.state == "succeeded"


def test_one_that_is_retried_when_its_time_is_over_stays(stage: Stage) -> None:
    flow = Flow(stage, "a>b", ttl=SECOND).started()
    flow.play(a="failed")
    stage.now += 10 * SECOND
    flow.retry()
    assert lapse(stage, 10) == 0
    # Even if something had put it back: what lives does not lapse.
    stage.client.zadd(stage.keys("lapses"), {flow.id: stage.now})
    assert lapse(stage, 10) == 0
    assert stage.members("lapses") == {}
    flow.play()
    assert flow.state == "succeeded"


def test_one_whose_callback_has_not_ended_stays_for_it(stage: Stage) -> None:
    flow = Flow(stage, "a yes", on_success="yes", ttl=0).started()
    flow.end("a")
    assert stage.run(protocol.lapse(stage.keys, 10)) == (0, stage.now, stage.now + MINUTE)
    claim = flow.claims()["yes"]
    stage.now += MINUTE
    assert lapse(stage, 10) == 0
    stage.end(claim)
    stage.now += MINUTE
    assert lapse(stage, 10) == 1
    assert flow.left() == set()


def test_a_large_one_leaves_the_lists_at_once_and_its_nodes_as_a_chore(stage: Stage) -> None:
    flow = Flow(stage, fan(2300)).made()
    flow.cancel()
    flow.tend_all()
    flow.expire(0)
    small = ended(stage, ttl=0)
    assert lapse(stage, 10) == 1
    assert flow.views() == set()
    assert len(flow.chores()) == 1
    assert lapse(stage, 10) == 1
    flow.tend_all()
    assert flow.left() == small.left() == set()


def test_a_row_whose_workflow_is_gone_is_dropped(stage: Stage) -> None:
    stage.client.zadd(stage.keys("lapses"), {Flow(stage, "a").id: 5})
    lapse(stage, 10)
    assert stage.members("lapses") == {}


def test_many_small_ones_are_removed_in_bounded_pieces(stage: Stage) -> None:
    node = Flow(stage, "a").graph.nodes
    for _ in range(300):
        Flow(stage, Graph("shop", node, ttl=0)).started()
    while taken := stage.take(limit=500):
        stage.settle(*(stage.outcome(claim) for claim in taken))
    pieces: list[int] = []
    while removed := lapse(stage, 500):
        pieces.append(removed)
    assert sum(pieces) == 300
    assert max(pieces) <= 50


def test_one_that_nobody_starts_leaves_when_its_time_is_over(stage: Stage) -> None:
    never, started, cancelled = (Flow(stage, "a>b", unstarted=SECOND, key=f"k{n}").made() for n in range(3))
    for_ever = Flow(stage, "a>b").made()
    assert never.now.lapses_us == stage.now + SECOND
    started.start()
    cancelled.cancel()
    cancelled.tend_all()
    assert [flow.now.lapses_us for flow in (started, cancelled, for_ever)] == [0, 0, 0]
    assert lapse(stage, 10) == 0
    stage.now += SECOND
    assert lapse(stage, 10) == 1
    assert (never.left(), never.record) == (set(), None)
    assert [flow.state for flow in (started, cancelled, for_ever)] == ["running", "cancelled", "pending"]


def test_one_that_was_stopped_before_its_start_leaves_as_well(stage: Stage) -> None:
    flow = Flow(stage, "a>b", unstarted=SECOND).made()
    flow.stop()
    flow.expire(SECOND)
    stage.now += SECOND
    assert lapse(stage, 10) == 1
    assert flow.left() == set()


def test_one_of_which_a_part_was_started_waits_as_long_from_the_end_of_that(stage: Stage) -> None:
    flow = Flow(stage, "a>b c", unstarted=SECOND).made()
    flow.start("b")
    stage.now += 5 * SECOND
    assert flow.play() == ["b"]
    assert (flow.state, flow.now.lapses_us) == ("pending", stage.now + SECOND)
    flow.start()
    assert flow.now.lapses_us == 0
    assert flow.play() == ["a", "c"]
    assert flow.state == "succeeded"
