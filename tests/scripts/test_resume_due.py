from __future__ import annotations

import pytest

from headrace.protocol.operations import pause, resume_due
from headrace.worker.dispatcher.dispatcher_events import HURRY
from tests.scripts.stage import SECOND, START, Stage


def test_a_pause_ends_when_its_time_has_come_and_somebody_is_woken(stage: Stage) -> None:
    (id,) = stage.put()
    stage.run(pause(stage.keys, "default", 2 * SECOND))
    stage.run(pause(stage.keys, "later", 5 * SECOND))
    stage.run(pause(stage.keys, "for-ever"))
    stage.doze()
    stage.now += 2 * SECOND - 1
    assert stage.run(resume_due(stage.keys, 10)) == (0, stage.now, START + 2 * SECOND)
    assert (stage.take(), stage.tokens()) == ([], 0)
    stage.now += 1
    assert stage.run(resume_due(stage.keys, 10)) == (1, stage.now, START + 5 * SECOND)
    assert stage.names("paused") == {"later", "for-ever"}
    assert stage.tokens() == 1
    assert [claim.id for claim in stage.take()] == [id]
    stage.now += 3 * SECOND
    assert stage.run(resume_due(stage.keys, 10)) == (1, stage.now, 0)
    assert stage.names("paused") == {"for-ever"}


def test_each_incarnation_hears_of_the_end_and_of_nothing_else(stage: Stage) -> None:
    stage.run(pause(stage.keys, "empty", SECOND))
    stage.register("w1")
    ear = stage.subscribe(stage.keys.mail("w1"))
    stage.run(resume_due(stage.keys, 10))
    assert ear.get_message(timeout=0) is None
    stage.now += SECOND
    stage.run(resume_due(stage.keys, 10))
    assert ear.get_message(timeout=20)["data"] == HURRY.encode()
    ear.close()


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_more_than_the_limit_soonest_first(stage: Stage, limit: int) -> None:
    queues = ["c", "a", "b"]
    for n, queue in enumerate(queues, 1):
        stage.run(pause(stage.keys, queue, n * SECOND))
    stage.now += 9 * SECOND
    resumed, _, end = stage.run(resume_due(stage.keys, limit))
    assert (resumed, end) == (limit, START + (limit + 1) * SECOND if limit < 3 else 0)
    assert stage.names("paused") == set(queues[limit:])
