"""The included script ``records``: pages and walks bring what is stored of each job, as a read would."""

from __future__ import annotations

import pytest

from headrace.protocol import index_pages, produce
from headrace.protocol.index_pages import Slice, walk
from headrace.protocol.overviews import overview
from tests.scripts.stage import KEEP, SECOND, Stage
from tests.scripts.test_own_store import claim_own, store


@pytest.mark.parametrize("values", [True, False])
def test_a_page_brings_what_a_read_would(stage: Stage, values: bool) -> None:
    ids = [stage.finished("failed", b'{"type":"ValueError","message":"no"}') for _ in range(3)]
    stage.client.hset(stage.keys.job(ids[0]), "args", b"x" * 5000)
    page = stage.run(index_pages.page(stage.keys, "failed", Slice(2, desc=False), values=values))
    assert [id for id, _ in page.rows] == ids[:2]
    assert page.records == stage.run(produce.read(stage.keys, ids[:2], lean=not values))
    assert page.records[0] is not None
    assert page.records[0].left_out == (0 if values else 5000)


def test_a_walk_brings_the_jobs_of_all_its_structures_in_order(stage: Stage) -> None:
    for queue in ("a", "b", "c"):
        stage.put(2, queue=queue)
    walked = stage.run(index_pages.walk(stage.keys, ["ready:a", "ready:b", "ready:c"], Slice(5), values=False))
    ids = [id for id, _ in walked.rows]
    assert len(ids) == 5
    assert walked.records == stage.run(produce.read(stage.keys, ids, lean=True))


def test_ids_come_alone_where_nothing_else_is_asked(stage: Stage) -> None:
    stage.put(2, delay=SECOND)
    assert stage.run(index_pages.page(stage.keys, "scheduled")).records == []
    assert stage.run(index_pages.walk(stage.keys, ["ready:default"], Slice(9))).records == []


@pytest.mark.parametrize("values", [True, False])
def test_when_a_waiting_job_of_a_page_is_due(stage: Stage, values: bool) -> None:
    stage.put(delay=SECOND)
    stage.put(priority=3)
    for index, due in (("scheduled", stage.now + SECOND), ("ready:default", stage.now)):
        (record,) = stage.run(index_pages.page(stage.keys, index, values=values)).records
        assert record is not None
        assert record.due_us == due


def test_a_job_that_is_gone_is_none(stage: Stage) -> None:
    gone, there = stage.put(2)
    fields = stage.client.hgetall(stage.keys.job(gone))
    stage.client.delete(stage.keys.job(gone))
    page = stage.run(index_pages.page(stage.keys, "ready:default", Slice(desc=False), values=True))
    assert [record and record.id for record in page.records] == [None, there]
    stage.client.hset(stage.keys.job(gone), mapping=fields)


@pytest.mark.parametrize("kind", ["running", "snoozed", "parked", "failed", "succeeded"])
def test_counts_and_lists_leave_them_out(stage: Stage, kind: str) -> None:
    store(stage, "1")
    (claim,) = claim_own(stage)
    state = {"snoozed": "scheduled"}.get(kind, kind)
    if kind != "running":
        stage.end(claim, kind, b"{}", SECOND if kind == "snoozed" else KEEP)
    assert stage.state(claim.id) == state
    seen = stage.run(overview(stage.keys))
    assert (set(seen.states.values()), [queue.name for queue in seen.queues], seen.parked) == ({0}, ["default"], {})
    structure = {"running": "claims:w1", "parked": "parked:headrace.test"}.get(state, state)
    part = stage.run(walk(stage.keys, [structure], Slice(9)))
    assert part.rows == []
    own = stage.run(walk(stage.keys, ["own"], Slice(9)))
    assert [id for id, _ in own.rows] == [claim.id]
