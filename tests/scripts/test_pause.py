from __future__ import annotations

from headrace.protocol.operations import pause, resume, resume_due, told
from headrace.protocol.overviews import overview
from headrace.worker.dispatcher.dispatcher_events import HURRY
from tests.scripts.stage import SECOND, START, Stage


def test_a_pause_holds_until_it_is_lifted(stage: Stage) -> None:
    claim = stage.running()
    assert stage.run(pause(stage.keys, "default"))
    assert not stage.run(pause(stage.keys, "default"))
    assert stage.names("paused") == {"default"}
    stage.put()
    assert stage.take() == []
    stage.end(claim, "released")
    assert stage.take() == []
    assert len(stage.ready()) == 2


def test_an_end_of_its_own_is_the_one_said_last(stage: Stage) -> None:
    assert stage.run(pause(stage.keys, "default", 10 * SECOND))
    assert stage.members("resumes") == {"default": START + 10 * SECOND}
    stage.now += SECOND
    assert not stage.run(pause(stage.keys, "default", 2 * SECOND))
    assert stage.members("resumes") == {"default": START + 3 * SECOND}
    assert not stage.run(pause(stage.keys, "default"))
    assert stage.members("resumes") == {}
    assert stage.names("paused") == {"default"}


def test_each_incarnation_hears_of_an_end(stage: Stage) -> None:
    ears = []
    for owner in ("w1", "w2"):
        stage.register(owner)
        ears.append(stage.subscribe(stage.keys.mail(owner)))
    stage.run(pause(stage.keys, "without"))
    stage.run(pause(stage.keys, "default", SECOND))
    for ear in ears:
        assert ear.get_message(timeout=20)["data"] == HURRY.encode()
        assert ear.get_message(timeout=0) is None
        ear.close()


def test_a_reason_lasts_as_long_as_the_pause(stage: Stage) -> None:
    def notes() -> dict[str, str]:
        seen = stage.run(overview(stage.keys, details=False))
        return {queue.name: queue.note for queue in seen.queues}

    stage.run(pause(stage.keys, "default", note="an upgrade"))
    stage.run(pause(stage.keys, "mail", 10 * SECOND, "no <b>network</b>"))
    assert notes() == {"default": "an upgrade", "mail": "no <b>network</b>"}
    newest = stage.run(told(stage.keys, "events", 3, kinds=["queue_paused"])).rows[0][1]
    assert (newest["queue"], newest["why"]) == ("mail", "no <b>network</b>")
    stage.run(pause(stage.keys, "default"))
    assert notes() == {"default": "", "mail": "no <b>network</b>"}
    stage.now += 10 * SECOND
    stage.run(resume_due(stage.keys, 10))
    stage.run(pause(stage.keys, "default", note="again"))
    stage.run(resume(stage.keys, "default"))
    assert stage.client.exists(stage.keys("pauses")) == 0
