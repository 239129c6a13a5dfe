from __future__ import annotations

import pytest

from headrace.protocol.operations import purge
from tests.scripts.graphs import Flow
from tests.scripts.stage import SECOND, Stage


@pytest.mark.parametrize("limit", [1, 499, 500, 501, 999, 1000])
def test_a_bounded_number_leaves_with_its_records(stage: Stage, limit: int) -> None:
    stage.put(1001)
    assert stage.run(purge(stage.keys, "default", limit)) == (limit, 1001 - limit)
    assert len(stage.ready()) == 1001 - limit
    assert stage.names("queues") == {"default"}


def test_an_emptied_queue_is_forgotten(stage: Stage) -> None:
    stage.put(3)
    for removed in (3, 0):
        assert stage.run(purge(stage.keys, "default", 1000)) == (removed, 0)
        assert [key for key in stage.client.keys("*") if b"sender:" not in key] == []


def test_only_ready_jobs_of_that_queue_leave(stage: Stage) -> None:
    running, scheduled = stage.running(), stage.put(delay=SECOND)[0]
    other, ready = stage.put(queue="other")[0], stage.put()[0]
    assert stage.run(purge(stage.keys, "default", 1000)) == (1, 0)
    states = [stage.state(id) for id in (running.id, scheduled, other, ready)]
    assert states == ["running", "scheduled", "ready", None]


def test_a_record_of_another_type_leaves_too(stage: Stage) -> None:
    (id,) = stage.put()
    stage.client.delete(stage.keys.job(id))
    stage.client.set(stage.keys.job(id), "alien")
    assert stage.run(purge(stage.keys, "default", 1000)) == (1, 0)


def test_nodes_that_become_ready_by_a_purge_stay(stage: Stage) -> None:
    flow = Flow(stage, "a>b:c").started()
    assert stage.run(purge(stage.keys, "default", 1000)) == (1, 0)
    assert stage.ready() == [flow["b"]]
    assert stage.names("queues") == {"default"}
