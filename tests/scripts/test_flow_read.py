from __future__ import annotations

import pytest

from headrace.protocol.graph import read_flows
from tests.scripts.graphs import Flow
from tests.scripts.stage import SECOND, Stage


def test_a_record_says_everything(stage: Stage) -> None:
    created = stage.now
    flow = Flow(
        stage, "a>b c d x", args=b"\x92\x91\x01\x80", globals=b"\x81\xa1k\x01", key="k", ttl=SECOND
    ).made()  # fmt: skip
    stage.now += 10
    flow.start()
    flow.play(c="failed", a="skipped")
    record = flow.now
    assert (record.id, record.definition, record.state, record.key, record.ttl) == (
        flow.id,
        "shop",
        "failed",
        "k",
        SECOND,
    )
    assert (record.created_us, record.started_us, record.lapses_us) == (
        created,
        created + 10,
        record.finished_us + SECOND,
    )
    assert record.finished_us == stage.now
    assert (record.total, record.active, record.done, record.progress) == (5, 0, 5, 1.0)
    assert flow.counts == {"failed": 1, "skipped": 2, "succeeded": 2}
    assert (record.packed_args, record.args, record.globals, record.failed_node) == (
        b"\x92\x91\x01\x80",
        (1,),
        {"k": 1},
        "c",
    )
    assert record.fields["st"] == b"failed"


def test_rows_come_in_the_order_of_the_ids_and_none_where_nothing_is(stage: Stage) -> None:
    one, two, absent = Flow(stage, "a").made(), Flow(stage, "a").made(), Flow(stage, "a")
    found = stage.run(read_flows(stage.keys, [two.id, absent.id, one.id]))
    assert [row and row.id for row in found] == [two.id, None, one.id]
    assert stage.run(read_flows(stage.keys, [])) == []


def test_the_first_that_failed_is_named(stage: Stage) -> None:
    flow = Flow(stage, "a b c").started()
    flow.play(b="failed", c="failed")
    assert flow.now.failed_node == "b"


@pytest.mark.mangles
def test_alien_values_do_not_stop_a_look(stage: Stage) -> None:
    flow = Flow(stage, "a").started()
    stage.client.hset(
        stage.keys.flow(flow.id), mapping={"st": "odd", "total": "many", "ttl": "", "definition": b"\xff"}
    )
    assert (flow.now.state, flow.now.total, flow.now.ttl) == ("stopped", 0, -1)
