from __future__ import annotations

import pytest

from headrace.model.job import State
from headrace.protocol.produce import Watched, watch
from tests.scripts.stage import SECOND, START, Stage


def test_an_unfinished_job_is_watched_until_the_wait_is_over(stage: Stage) -> None:
    (id,) = stage.put()
    assert stage.run(watch(stage.keys, id, 5 * SECOND)) == Watched(State.READY, None, None)
    assert stage.members("waited") == {id: START + 5 * SECOND}
    stage.run(watch(stage.keys, id, SECOND))
    assert stage.members("waited") == {id: START + 5 * SECOND}
    stage.run(watch(stage.keys, id, 9 * SECOND))
    assert stage.members("waited") == {id: START + 9 * SECOND}


def test_a_look_leaves_no_trace(stage: Stage) -> None:
    (id,) = stage.put()
    stage.run(watch(stage.keys, id, 0))
    assert stage.members("waited") == {}


@pytest.mark.parametrize("kind", ["succeeded", "failed", "cancelled", "corrupt"])
def test_a_finished_job_is_told_at_once(stage: Stage, kind: str) -> None:
    id = stage.finished(kind, b"told")
    seen = stage.run(watch(stage.keys, id, SECOND))
    assert seen.state is not None
    assert seen.state.final
    assert (seen.result, seen.error) == ((b"told", None) if kind == "succeeded" else (None, b"told"))
    assert stage.members("waited") == {}


def test_a_job_that_does_not_exist_is_not_waited_for(stage: Stage) -> None:
    assert stage.run(watch(stage.keys, "0" * 21, SECOND)) == Watched(None, None, None)
    assert stage.client.dbsize() == 0
