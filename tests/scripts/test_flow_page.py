from __future__ import annotations

from typing import Any

import pytest

from headrace.model.workflow import Graph
from headrace.protocol.graph import FlowPage, flow_page
from headrace.protocol.index_pages import Slice
from tests.scripts.graphs import Flow
from tests.scripts.stage import SECOND, Stage


def several(stage: Stage, count: int, apart: int = SECOND) -> list[Flow]:
    found: list[Flow] = []
    for _ in range(count):
        stage.now += apart
        found.append(Flow(stage, "a").made())
    return found


def page(stage: Stage, definition: str = "", state: str = "", **piece: Any) -> FlowPage:
    return stage.run(flow_page(stage.keys, definition, state, Slice(**piece)))


def ids(stage: Stage, **asked: Any) -> list[str]:
    return [row.id for row in page(stage, **asked).rows]


def test_the_newest_come_first_or_last(stage: Stage) -> None:
    made = [flow.id for flow in several(stage, 5)]
    assert ids(stage) == made[::-1]
    assert ids(stage, desc=False) == made
    assert ids(stage, limit=2) == made[:2:-1]
    assert ids(stage, limit=2, offset=1, desc=False) == made[1:3]
    assert ids(stage, offset=9) == ids(stage, limit=0) == []
    assert page(stage, limit=2).count == 5


def test_a_page_holds_what_a_list_shows(stage: Stage) -> None:
    flow = Flow(stage, "a>b c", key="k", ttl=SECOND, args=b"\x92\x91\x01\x80").started()
    flow.play(a="failed")
    (row,) = page(stage).rows
    record = flow.now
    assert (row.state, row.definition, row.key, row.ttl, row.lapses_us) == (
        "failed",
        "shop",
        "k",
        SECOND,
        record.lapses_us,
    )
    assert (row.created_us, row.started_us, row.finished_us) == (
        record.created_us,
        record.started_us,
        record.finished_us,
    )
    assert (row.total, row.active, row.counts, row.done) == (3, 0, record.counts, 2)
    assert row.failed_node == "a"
    # A page of large arguments would cost what a scan did.
    assert (row.packed_args, row.args, row.globals) == (b"", (), {})


def test_the_first_that_was_cancelled_is_named_too(stage: Stage) -> None:
    flow = Flow(stage, "a b").started()
    flow.play(b="cancelled")
    assert page(stage).rows[0].failed_node == flow.now.failed_node == "b"


def test_views_are_by_definition_and_state(stage: Stage) -> None:
    one, two = several(stage, 2)
    stage.now += 1
    other = Flow(stage, Graph("other", one.graph.nodes)).started()
    two.start()
    assert ids(stage, definition="shop") == [two.id, one.id]
    assert ids(stage, state="running") == [other.id, two.id]
    assert ids(stage, definition="shop", state="running") == [two.id]
    assert ids(stage, definition="none") == ids(stage, state="failed") == []


def test_a_change_of_state_keeps_the_place(stage: Stage) -> None:
    flows = several(stage, 3)
    for flow in reversed(flows):
        stage.now += SECOND
        flow.start()
    assert ids(stage, state="running", desc=False) == [flow.id for flow in flows]


@pytest.mark.parametrize("desc", [True, False])
@pytest.mark.parametrize("apart", [SECOND, 0])
def test_a_cursor_reads_each_once_ties_included(stage: Stage, desc: bool, apart: int) -> None:
    made = sorted((flow.now.created_us, flow.id) for flow in several(stage, 7, apart))
    seen: list[tuple[int, str]] = []
    after: tuple[int, str] | None = None
    while rows := page(stage, limit=2, after=after, desc=desc).seen:
        seen += [(score, id) for id, score in rows]
        after = seen[-1]
        # What comes and goes between pages moves nobody else.
        stage.now += 1
    assert seen == (made[::-1] if desc else made)


@pytest.mark.parametrize("desc", [True, False])
def test_a_window_holds_both_of_its_ends_in_either_order(stage: Stage, desc: bool) -> None:
    flows = several(stage, 5)
    times = [flow.now.created_us for flow in flows]
    inside = [flow.id for flow in flows[1:4]]
    assert ids(stage, since=times[1], until=times[3], desc=desc) == (inside[::-1] if desc else inside)
    assert len(ids(stage, since=times[1], desc=desc)) == 4
    assert len(ids(stage, until=times[1], desc=desc)) == 2
    assert ids(stage, since=times[3], until=times[1], desc=desc) == []


def test_a_row_whose_record_is_gone_is_passed_over_and_dropped(stage: Stage) -> None:
    flows = several(stage, 4)
    for flow in flows[1:3]:
        stage.client.delete(stage.keys.flow(flow.id), stage.keys.job(flow["a"]))
    found = page(stage)
    assert [row.id for row in found.rows] == [flows[3].id, flows[0].id]
    assert [id for id, _ in found.seen] == [flow.id for flow in flows[::-1]]
    for definition, state in (("", "pending"), ("shop", ""), ("shop", "pending")):
        assert len(ids(stage, definition=definition, state=state)) == 2
    assert page(stage).count == 2


@pytest.mark.mangles
def test_an_alien_record_does_not_stop_a_page(stage: Stage) -> None:
    one, two = several(stage, 2)
    stage.client.delete(stage.keys.flow(one.id))
    stage.client.set(stage.keys.flow(one.id), "alien")
    assert ids(stage) == [two.id]


def test_each_state_is_in_exactly_its_four_views(stage: Stage) -> None:
    flow = Flow(stage, "a>b").made()
    seen = [flow.views()]
    for verb in (flow.start, flow.stop, flow.start, flow.cancel):
        verb()
        seen.append(flow.views())
    flow.tend_all()
    seen.append(flow.views())
    states = ["pending", "running", "stopped", "running", "running", "cancelled"]
    assert seen == [{"|", "shop|", f"|{state}", f"shop|{state}"} for state in states]
