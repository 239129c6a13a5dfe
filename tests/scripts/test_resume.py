from __future__ import annotations

from headrace.protocol.operations import pause, resume
from tests.scripts.stage import Stage


def test_jobs_are_claimed_again_and_somebody_is_woken(stage: Stage) -> None:
    (id,) = stage.put()
    stage.run(pause(stage.keys, "default"))
    assert stage.take() == []
    stage.doze()
    assert stage.run(resume(stage.keys, "default"))
    assert stage.tokens() == 1
    assert [c.id for c in stage.take()] == [id]


def test_an_empty_queue_wakes_nobody(stage: Stage) -> None:
    stage.run(pause(stage.keys, "default", 1))
    assert stage.run(resume(stage.keys, "default"))
    assert not stage.run(resume(stage.keys, "default"))
    assert stage.client.dbsize() == 0
