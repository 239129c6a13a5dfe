"""The included script ``crash``, through the outcome ``crashed``; reclaim's use of it is in test_reclaim."""

from __future__ import annotations

from headrace.model.job import Claim, Outcome
from tests.scripts.stage import KEEP, LEVEL, SECOND, Stage

EVIDENCE = b'{"type":"Crashed","signal":11}'


def crash(stage: Stage, claim: Claim, ready: int = 0) -> None:
    outcome = Outcome(claim.id, claim.token, "crashed", EVIDENCE, KEEP)
    assert stage.settle(outcome, ready=ready).stale == []


def test_a_crash_lets_the_job_run_again_with_its_evidence_stored(stage: Stage) -> None:
    claim = stage.running(priority=1)
    stage.doze()
    stage.now += SECOND
    crash(stage, claim)
    record = stage.record(claim.id)
    assert (record["st"], record["crashes"], record["error"]) == (b"ready", b"1", EVIDENCE)
    assert "owner" not in record
    assert stage.members("ready:default") == {claim.id: stage.now - LEVEL}
    assert stage.tokens() == 1


def test_it_may_keep_its_place(stage: Stage) -> None:
    claim = stage.running()
    stage.now += SECOND
    crash(stage, claim, ready=claim.ready)
    assert stage.members("ready:default") == {claim.id: claim.ready}


def test_the_third_crash_quarantines(stage: Stage) -> None:
    claim = stage.running()
    for crashes in (1, 2):
        crash(stage, claim)
        (claim,) = stage.take()
        assert claim.crashes == crashes
    crash(stage, claim)
    assert stage.state(claim.id) == "quarantined"
    assert stage.members("quarantined") == {claim.id: stage.now}
    assert stage.record(claim.id)["crashes"] == b"3"


def test_the_budget_may_be_the_jobs_own(stage: Stage) -> None:
    claim = stage.running(max_crashes=1)
    crash(stage, claim)
    assert stage.state(claim.id) == "quarantined"


def test_where_the_job_names_no_budget_its_workers_task_does(stage: Stage) -> None:
    stage.register("w1", facts=["budget:add", 1])
    claim = stage.running()
    crash(stage, claim)
    assert stage.state(claim.id) == "quarantined", "the task's budget on this worker"
    own = stage.running(max_crashes=2)
    crash(stage, own)
    assert stage.state(own.id) == "ready", "the job's own comes first"


def test_where_neither_does_the_workers_settings_do(stage: Stage) -> None:
    stage.register("w1", facts=["budget:", 2, "budget:other", 1])
    claim = stage.running()
    crash(stage, claim)
    (claim,) = stage.take()
    crash(stage, claim)
    assert stage.state(claim.id) == "quarantined"


def test_a_start_that_may_not_be_repeated_fails(stage: Stage) -> None:
    claim = stage.running(at_most_once=True)
    crash(stage, claim)
    assert stage.state(claim.id) == "failed"
    assert stage.record(claim.id)["error"] == EVIDENCE


def test_errors_do_not_count_as_crashes(stage: Stage) -> None:
    claim = stage.running(max_crashes=2)
    for _ in range(4):
        stage.end(claim, "retry", b"{}", 0)
        (claim,) = stage.take()
    crash(stage, claim)
    assert stage.state(claim.id) == "ready"
