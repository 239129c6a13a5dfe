from __future__ import annotations

from typing import Any

import pytest

from headrace.protocol import produce
from tests.scripts.stage import SECOND, Stage
from tests.scripts.unique_stage import only


@pytest.mark.parametrize("where", ["ready", "scheduled", "parked", "blocked"])
def test_a_job_leaves_the_structure_of_its_state(stage: Stage, where: str) -> None:
    if where == "blocked":
        stage.put(key="k", ordered=True)
    facts: dict[str, Any] = {"scheduled": {"delay": SECOND}, "blocked": {"key": "k", "ordered": True}}.get(where, {})
    (id,) = stage.put(**facts)
    if where == "parked":
        stage.end(only(stage), kind="parked")
    assert stage.state(id) == where
    stage.run(produce.cancel(stage.keys, id, 0))
    assert stage.state(id) is None


def test_a_running_job_is_asked_to_stop(stage: Stage) -> None:
    claim = stage.running()
    stage.run(produce.cancel(stage.keys, claim.id, 0))
    assert stage.client.smembers(stage.keys("cancels:w1")) == {claim.id.encode()}
