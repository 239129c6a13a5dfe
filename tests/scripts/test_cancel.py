from __future__ import annotations

import pytest

from headrace.model.job import Claim
from headrace.protocol.produce import cancel
from tests.scripts.stage import KEEP, SECOND, Stage


def ask(stage: Stage, id: str, keep: int = KEEP) -> str:
    return stage.run(cancel(stage.keys, id, keep))


def waiting(stage: Stage, state: str) -> str:
    if state == "parked":
        claim = stage.running()
        stage.end(claim, "parked")
        return claim.id
    return stage.put(delay=SECOND if state == "scheduled" else 0)[0]


@pytest.mark.parametrize("state", ["ready", "scheduled", "parked"])
@pytest.mark.parametrize("keep", [0, KEEP])
def test_a_waiting_job_ends_at_once(stage: Stage, state: str, keep: int) -> None:
    id = waiting(stage, state)
    assert stage.state(id) == state
    assert ask(stage, id, keep) == "cancelled"
    assert stage.state(id) == ("cancelled" if keep else None)
    assert stage.members("cancelled") == ({id: stage.now} if keep else {})
    assert ask(stage, id) == ("cancelled" if keep else "missing")


def test_the_last_parked_job_takes_its_tasks_name_with_it(stage: Stage) -> None:
    one, two = waiting(stage, "parked"), waiting(stage, "parked")
    ask(stage, one)
    assert stage.names("parking") == {"add"}
    ask(stage, two)
    assert stage.names("parking") == set()


def test_a_running_job_is_asked_to_stop(stage: Stage) -> None:
    claim: Claim = stage.running()
    pubsub = stage.subscribe(stage.keys.mail("w1"))
    before = stage.everything()
    for _ in range(2):
        assert ask(stage, claim.id) == "asked"
        assert pubsub.get_message(timeout=20)["data"] == claim.id.encode()
    assert stage.state(claim.id) == "running"
    assert stage.names("cancels:w1") == {claim.id}
    stage.end(claim, "cancelled")
    assert stage.names("cancels:w1") == set()
    assert before != stage.everything()
    pubsub.close()


@pytest.mark.parametrize("kind", ["succeeded", "failed", "cancelled"])
def test_a_finished_job_stays_as_it_is(stage: Stage, kind: str) -> None:
    id = stage.finished(kind)
    before = stage.everything()
    assert ask(stage, id) == kind
    assert stage.everything() == before


def test_a_job_that_does_not_exist(stage: Stage) -> None:
    assert ask(stage, "0" * 21) == "missing"
    assert stage.client.dbsize() == 0


def test_a_cancelled_job_is_not_claimed(stage: Stage) -> None:
    one, two = stage.put(2)
    ask(stage, one)
    assert [c.id for c in stage.take()] == [two]


def test_a_record_without_its_queue_can_still_be_cancelled(stage: Stage) -> None:
    (id,) = stage.put()
    stage.client.hdel(stage.keys.job(id), "queue")
    assert ask(stage, id) == "cancelled"
