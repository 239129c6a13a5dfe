from __future__ import annotations

import pytest

from headrace.model.errand import Errand, JobFilter
from headrace.model.job import JobError, error_json
from headrace.model.job_record import cause_id
from headrace.protocol import graph, produce
from headrace.protocol.consume import renew
from headrace.protocol.operations import begin_errand, bite, count_meant, read_errands, stop_errand, told
from tests.scripts.graphs import Flow, fan
from tests.scripts.stage import KEEP, SECOND, Stage

ERROR = error_json(JobError(type="ValueError", message="no"))


def begin(stage: Stage, verb: str, state: str, id: str = "e1", rate: int = 0, **which: str) -> None:
    fields: dict[str, str | int] = {"verb": verb, "state": state, "who": "ada", "rate": rate, "ttl": KEEP, **which}
    stage.run(begin_errand(stage.keys, id, fields))


def work(stage: Stage, limit: int = 250, id: str = "e1") -> Errand:
    found = stage.run(bite(stage.keys, id, limit))
    assert found is not None
    return found


def finish(stage: Stage, limit: int, id: str = "e1") -> Errand:
    for _ in range(100):
        errand = work(stage, limit, id)
        if errand.phase != "running":
            return errand
    raise AssertionError("it does not end")


@pytest.mark.parametrize("limit", [1, 2, 3, 250])
def test_each_job_is_retried_once_whatever_the_pieces(stage: Stage, limit: int) -> None:
    jobs = [stage.finished("failed", ERROR) for _ in range(7)]
    begin(stage, "retry", "failed")
    errand = finish(stage, limit)
    assert (errand.phase, errand.looked, errand.done, errand.refused) == ("ended", 7, 7, {})
    assert set(stage.ready()) == set(jobs)
    assert stage.members("chores") == {}
    assert work(stage) == errand


def test_only_what_was_there_is_touched(stage: Stage) -> None:
    stage.finished("failed", ERROR)
    begin(stage, "retry", "failed")
    stage.now += 1
    later = stage.finished("failed", ERROR)
    assert finish(stage, 10).done == 1
    assert stage.state(later) == "failed"


@pytest.mark.parametrize("state", ["ready", "scheduled"])
def test_what_waits_is_cancelled_if_it_was_there(stage: Stage, state: str) -> None:
    delay = {"delay": 60 * SECOND} if state == "scheduled" else {}
    old = stage.put(3, priority=5, **delay)
    begin(stage, "cancel", state, queue="default")
    stage.now += SECOND
    new = stage.put(2, priority=5, **delay)
    assert finish(stage, 2).done == 3
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
    assert (counted.matched, counted.looked, counted.last) == (1, 5, None)
    begin(stage, "delete", "failed", queue="mail", task="add", key="k", cause=cause)
    assert finish(stage, 2).done == 1
    assert stage.state(wanted) is None
    assert len(stage.members("failed")) == 4
    assert stage.bytes() == sum(len(stage.record(id)["error"]) for id in stage.members("failed"))


def test_refusals_are_counted_by_their_reason(stage: Stage) -> None:
    ids = [stage.finished("failed", ERROR) for _ in range(2)]
    stage.client.hset(stage.keys.job(ids[0]), "queue", "@w1")
    begin(stage, "retry", "failed")
    errand = finish(stage, 250)
    assert (errand.done, errand.refused) == (1, {"broadcast": 1})
    assert errand.words == "1 done, 1 refused (broadcast)"


def test_it_ends_with_an_event_and_within_a_week(stage: Stage) -> None:
    begin(stage, "retry", "failed")
    assert finish(stage, 250).done == 0
    (event,) = stage.run(told(stage.keys, "events", 9, kinds=["errand_ended"])).rows
    assert (event[1]["errand"], event[1]["verb"], event[1]["text"]) == ("e1", "retry", "0 done")
    for key in ("errand:e1", "errands"):
        assert 0 < stage.client.ttl(stage.keys(key)) <= 7 * 86400


def test_a_worker_does_the_pieces_as_background_work(stage: Stage) -> None:
    for _ in range(5):
        stage.finished("failed", ERROR)
    begin(stage, "retry", "failed")
    assert list(stage.members("chores")) == ["errand:e1"]
    left = [stage.run(graph.tend(stage.keys, 4))[0] for _ in range(2)]
    assert left == [1, 0]
    (errand,) = stage.run(read_errands(stage.keys))
    assert (errand.phase, errand.done) == ("ended", 5)


def test_a_rate_holds_whoever_does_the_pieces(stage: Stage) -> None:
    for _ in range(30):
        stage.finished("failed", ERROR)
    begin(stage, "retry", "failed", rate=10)
    assert work(stage, 10).done == 10
    assert work(stage, 10).done == 10
    assert stage.run(graph.tend(stage.keys, 10)) == (0, stage.now, stage.now + SECOND)
    stage.now += SECOND
    assert work(stage, 10).done == 20
    stage.now += SECOND
    assert work(stage, 11).done == 30


def test_one_under_way_goes_on_though_the_clock_was_set_back(stage: Stage) -> None:
    for _ in range(20):
        stage.finished("failed", ERROR)
    begin(stage, "retry", "failed", rate=10)
    assert work(stage, 10).done == 10
    stage.register()
    stage.now -= 3600 * SECOND
    renewed = stage.run(renew(stage.keys, "w1", 15 * SECOND))
    assert renewed.chore == stage.now
    assert work(stage, 10).done == 20


def test_a_workflow_that_is_being_made_is_not_given_up_since_the_clock_was_set_back(stage: Stage) -> None:
    flow = Flow(stage, fan(1500))
    assert stage.run(graph.create(stage.keys, flow.id, flow.graph, 1)).word == "more"
    before = stage.members("chores")
    stage.register()
    stage.now -= 3600 * SECOND
    stage.run(renew(stage.keys, "w1", 15 * SECOND))
    assert stage.members("chores") == before != {}


@pytest.mark.parametrize("state", ["failed", "ready"])
def test_a_rate_holds_for_jobs_that_one_piece_would_hold(stage: Stage, state: str) -> None:
    if state == "failed":
        for _ in range(5):
            stage.finished("failed", ERROR)
    else:
        stage.put(5)
    verb, queue = ("retry", "") if state == "failed" else ("cancel", "default")
    begin(stage, verb, state, rate=2, **({"queue": queue} if queue else {}))
    stage.now += 1
    for done in (2, 4):
        errand = work(stage)
        assert (errand.done, errand.looked, errand.phase) == (done, done, "running")
        assert work(stage) == errand
        stage.now += SECOND
    errand = work(stage)
    assert (errand.done, errand.looked, errand.phase) == (5, 5, "ended")


def test_a_rate_counts_no_jobs_that_are_not_meant(stage: Stage) -> None:
    jobs = [stage.finished("failed", ERROR) for _ in range(7)]
    for job in jobs[:5]:
        stage.client.hset(stage.keys(f"job:{job}"), "task", "other")
    task = stage.client.hget(stage.keys(f"job:{jobs[-1]}"), "task")
    assert task is not None
    begin(stage, "retry", "failed", rate=1, task=task.decode())
    errand = work(stage)
    assert (errand.done, errand.phase) == (1, "running")
    stage.now += SECOND
    assert work(stage).done == 2
    stage.now += SECOND
    errand = work(stage)
    assert (errand.done, errand.looked, errand.phase) == (2, 7, "ended")


def test_a_stopped_one_touches_nothing_more(stage: Stage) -> None:
    for _ in range(3):
        stage.finished("failed", ERROR)
    begin(stage, "retry", "failed")
    assert work(stage, 1).done == 1
    assert stage.run(stop_errand(stage.keys, "e1")) == "stopped"
    assert work(stage, 10).done == 1
    assert stage.run(graph.tend(stage.keys, 10))[0] == 0
    assert len(stage.members("failed")) == 2
    assert stage.run(stop_errand(stage.keys, "nothing")) == "missing"
    assert stage.run(produce.rerun(stage.keys, next(iter(stage.members("failed"))), "r")) == "retried"


def test_an_expired_one_is_forgotten(stage: Stage) -> None:
    begin(stage, "retry", "failed")
    stage.client.delete(stage.keys("errand:e1"))
    assert stage.run(graph.tend(stage.keys, 10))[0] == 0
    assert stage.run(bite(stage.keys, "e1", 10)) is None
    assert stage.run(read_errands(stage.keys)).rows == []
    assert stage.left() <= {"owners", "owner", "token", "queues", "wake"}
