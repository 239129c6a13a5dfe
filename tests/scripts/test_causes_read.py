from __future__ import annotations

from headrace.model.job import JobError, error_json
from headrace.model.job_record import cause_id
from headrace.protocol import produce
from headrace.protocol.index_pages import read_causes
from tests.scripts.stage import SECOND, Stage

FAULT = JobError(type="ValueError", message="no: 0x1f and 12\nsecond line")
CRASH = JobError(type="Crashed", message="died", signal=9, exit_code=-9)


def test_failures_are_counted_by_their_cause(stage: Stage) -> None:
    error, other = error_json(FAULT), error_json(CRASH)
    first, second = stage.finished("failed", error), stage.finished("failed", error)
    begun = stage.now
    stage.now += SECOND
    lost = stage.finished("failed", other, task="fetch")
    found = stage.run(read_causes(stage.keys))
    assert found.count == 2
    crash, fault = found.causes
    assert (crash.task, crash.kind, crash.number, crash.lost) == ("fetch", "signal 9", 1, False)
    assert [one.id for one in crash.newest] == [lost]
    assert (fault.id, fault.number, fault.first, fault.last) == (cause_id("add", FAULT), 2, begun, begun)
    assert (fault.line, fault.kind, fault.where) == (
        "ValueError: no: 0x1f and 12",
        "ValueError",
        "no: # and #\nsecond line",
    )
    assert [one.id for one in fault.newest] == [second, first]
    assert [one.id for one in stage.run(read_causes(stage.keys, "add")).causes] == [fault.id]
    assert [one.id for one in stage.run(read_causes(stage.keys, by="number", limit=1)).causes] == [fault.id]
    # What was retried is counted, and is no failure any more.
    stage.run(produce.rerun(stage.keys, first, "again"))
    (fault,) = stage.run(read_causes(stage.keys, "add")).causes
    assert (fault.number, [one.id for one in fault.newest]) == (2, [second])


def test_a_flood_of_one_cause_is_counted_to_the_last(stage: Stage) -> None:
    error, claims = error_json(FAULT), []
    stage.put(250)
    claims = stage.take()
    stage.settle(*(stage.outcome(claim, "failed", error) for claim in claims))
    ((cause,)) = stage.run(read_causes(stage.keys)).causes
    assert (cause.number, len(cause.newest)) == (250, 20)
