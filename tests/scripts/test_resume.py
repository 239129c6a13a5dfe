from __future__ import annotations

from headrace.protocol.operations import pause, resume
from headrace.worker.dispatcher.dispatcher_events import HURRY
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
    assert stage.left() == set()


def test_each_incarnation_hears_of_the_end(stage: Stage) -> None:
    stage.run(pause(stage.keys, "default"))
    stage.register("w1")
    ear = stage.subscribe(stage.keys.mail("w1"))
    stage.run(resume(stage.keys, "default"))
    stage.run(resume(stage.keys, "default"))
    assert ear.get_message(timeout=20)["data"] == HURRY.encode()
    assert ear.get_message(timeout=0) is None
    ear.close()
