from __future__ import annotations

import pytest

from headrace.model.job import JobError, error_json
from headrace.model.job_record import cause_id
from headrace.protocol.operations import (
    BulkProgress,
    BulkRequest,
    JobFilter,
    bulk_piece,
    count_meant,
    progress_of,
    told,
)
from tests.scripts.stage import KEEP, SECOND, Stage
from tests.scripts.test_own_store import claim_own, own_id, store

ERROR = error_json(JobError(type="ValueError", message="no"))


class Operation:
    """One operation, as a program does it: it keeps what the last piece returned."""

    def __init__(self, stage: Stage, verb: str, state: str, id: str = "", rate: int = 0, **which: str) -> None:
        self.stage, self.id, self.told = stage, id, b""
        self.request = BulkRequest(
            verb, JobFilter(state, **which), stage.now, rate, 0, exact=True, who="ada", by="program"
        )

    def piece(self, limit: int = 250) -> BulkProgress:
        call = bulk_piece(self.stage.keys, self.id, "e1", self.request, KEEP, limit, self.told)
        self.told = self.stage.run(call)
        return progress_of(self.told)

    def finish(self, limit: int = 250) -> BulkProgress:
        for _ in range(100):
            if (progress := self.piece(limit)).ended:
                return progress
        raise AssertionError("it does not end")


@pytest.mark.parametrize("limit", [1, 2, 3, 250])
def test_each_job_is_retried_once_whatever_the_pieces(stage: Stage, limit: int) -> None:
    jobs = [stage.finished("failed", ERROR) for _ in range(7)]
    operation = Operation(stage, "retry", "failed")
    progress = operation.finish(limit)
    assert (progress.looked, progress.done, progress.refused) == (7, 7, {})
    assert set(stage.ready()) == set(jobs)
    assert operation.piece() == progress


def test_only_what_was_there_is_touched(stage: Stage) -> None:
    stage.finished("failed", ERROR)
    operation = Operation(stage, "retry", "failed")
    stage.now += 1
    later = stage.finished("failed", ERROR)
    assert operation.finish(10).done == 1
    assert stage.state(later) == "failed"


@pytest.mark.parametrize("state", ["ready", "scheduled"])
def test_what_waits_is_cancelled_if_it_was_there(stage: Stage, state: str) -> None:
    delay = {"delay": 60 * SECOND} if state == "scheduled" else {}
    old = stage.put(3, priority=5, **delay)
    operation = Operation(stage, "cancel", state, queue="default")
    stage.now += SECOND
    new = stage.put(2, priority=5, **delay)
    assert operation.finish(2).done == 3
    assert {stage.state(id) for id in old} == {"cancelled"}
    assert {stage.state(id) for id in new} == {state}


def test_a_filter_means_queue_task_key_and_cause(stage: Stage) -> None:
    other = error_json(JobError(type="OSError", message="no"))
    wanted = stage.finished("failed", ERROR, queue="mail", key="k", task="add")
    for error, facts in (
        (other, {"queue": "mail", "key": "k"}),
        (ERROR, {"queue": "default", "key": "k"}),
        (ERROR, {"queue": "mail", "key": "l"}),
        (ERROR, {"queue": "mail", "key": "k", "task": "other"}),
    ):
        stage.finished("failed", error, **facts)
    cause = cause_id("add", JobError(type="ValueError", message="no"))
    which = JobFilter("failed", "mail", "add", "k", cause)
    counted = stage.run(count_meant(stage.keys, which, 500))
    assert (counted.matched, counted.looked, counted.last, counted.now) == (1, 5, None, stage.now)
    assert Operation(stage, "delete", "failed", queue="mail", task="add", key="k", cause=cause).finish(2).done == 1
    assert stage.state(wanted) is None
    assert len(stage.members("failed")) == 4
    assert stage.bytes() == sum(len(stage.record(id)["error"]) for id in stage.members("failed"))


def test_refusals_are_counted_by_their_reason(stage: Stage) -> None:
    ids = [stage.finished("failed", ERROR) for _ in range(2)]
    stage.client.hset(stage.keys.job(ids[0]), "queue", "@w1")
    progress = Operation(stage, "retry", "failed").finish()
    assert (progress.done, progress.refused) == (1, {"broadcast": 1})
    assert progress.words == "1 done, 1 refused (broadcast)"


def test_its_job_is_stored_with_its_progress_and_its_end_is_an_event(stage: Stage) -> None:
    for _ in range(3):
        stage.finished("failed", ERROR)
    store(stage, "1")
    operation = Operation(stage, "retry", "failed", id=own_id("1"))
    assert operation.piece(2).done == 2
    # Another start, which has read nothing, goes on where this one was killed.
    operation.told = b""
    assert operation.finish(2).done == 3
    assert progress_of(stage.record(own_id("1"))["bulk"]).done == 3
    assert operation.piece().ended
    (event,) = stage.run(told(stage.keys, "events", 9, kinds=["bulk_ended"])).rows
    assert (event[1]["bulk"], event[1]["verb"], event[1]["text"]) == (own_id("1"), "retry", "3 done")


def test_built_in_jobs_are_left_alone(stage: Stage) -> None:
    store(stage, "1")
    (claim,) = claim_own(stage)
    stage.end(claim, "failed", ERROR, KEEP)
    assert stage.run(count_meant(stage.keys, JobFilter("failed"), 9)).matched == 0
    assert Operation(stage, "retry", "failed").finish().done == 0
    assert stage.state(claim.id) == "failed"


@pytest.mark.parametrize("state", ["failed", "ready"])
def test_a_rate_bounds_what_a_piece_does(stage: Stage, state: str) -> None:
    if state == "failed":
        for _ in range(5):
            stage.finished("failed", ERROR)
    else:
        stage.put(5)
    verb, queue = ("retry", {}) if state == "failed" else ("cancel", {"queue": "default"})
    operation = Operation(stage, verb, state, rate=2, **queue)
    stage.now += 1
    assert [operation.piece().done for _ in range(3)] == [2, 4, 5]
    assert operation.finish().looked == 5


def test_a_rate_counts_no_jobs_that_are_not_meant(stage: Stage) -> None:
    jobs = [stage.finished("failed", ERROR) for _ in range(7)]
    for job in jobs[:5]:
        stage.client.hset(stage.keys(f"job:{job}"), "task", "other")
    operation = Operation(stage, "retry", "failed", rate=1, task="add")
    assert [operation.piece().done for _ in range(3)] == [1, 2, 2]
    assert operation.finish().looked == 7
