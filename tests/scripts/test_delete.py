from __future__ import annotations

import pytest

from headrace.protocol.produce import delete
from tests.scripts.graphs import Flow
from tests.scripts.stage import SECOND, Stage


def drop(stage: Stage, id: str) -> str:
    return stage.run(delete(stage.keys, id))


@pytest.mark.parametrize("kind", ["succeeded", "failed", "cancelled", "corrupt"])
def test_an_ended_job_leaves_with_all_of_it(stage: Stage, kind: str) -> None:
    id = stage.finished(kind, b"12345")
    stage.client.rpush(stage.keys(f"log:{id}"), "a line")
    assert drop(stage, id) == "deleted"
    assert drop(stage, id) == "missing"
    assert stage.left() == {"sender", "owners", "owner", "queues", "wake", "token", "totals"}
    assert stage.bytes() == 0


@pytest.mark.parametrize("state", ["ready", "scheduled", "parked", "blocked"])
def test_a_waiting_job_leaves_its_structure(stage: Stage, state: str) -> None:
    if state == "parked":
        claim = stage.running()
        stage.end(claim, "parked")
        id = claim.id
    else:
        ordered = {"key": "k", "ordered": True} if state == "blocked" else {}
        id = stage.put(2, delay=SECOND if state == "scheduled" else 0, **ordered)[1]
    assert stage.state(id) == state
    assert drop(stage, id) == "deleted"
    assert stage.state(id) is None


def test_one_that_is_waited_for_is_told(stage: Stage) -> None:
    (id,) = stage.put()
    stage.client.zadd(stage.keys("waited"), {id: stage.now + SECOND})
    ear = stage.subscribe(stage.keys.done(id))
    assert drop(stage, id) == "deleted"
    assert ear.get_message(timeout=20)["data"] == b"cancelled"
    ear.close()


def test_what_runs_or_belongs_to_a_workflow_stays(stage: Stage) -> None:
    claim = stage.running()
    assert drop(stage, claim.id) == "running"
    assert stage.state(claim.id) == "running"
    node = Flow(stage, "a").started().claims()["a"].id
    assert drop(stage, node) == "node"
    assert drop(stage, "0" * 21) == "missing"
