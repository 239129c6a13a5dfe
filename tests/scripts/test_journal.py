"""The included script ``journal``: what a job's record keeps of starts that did not simply succeed."""

from __future__ import annotations

import msgspec
import pytest

from headrace.model.job import JOURNAL_LINE, Claim, JobError, Outcome, StartNote, error_json, type_and_first_line
from headrace.model.job_record import AttemptRecord
from headrace.protocol import consume, produce
from headrace.worker.dispatcher.endings import journal_notes
from tests.scripts.stage import KEEP, LEVEL, SECOND, START, Stage

OWNER = "host:7:0a1b2c3d"


def failure(claim: Claim, text: str = "a value") -> bytes:
    return error_json(JobError(type="ValueError", message=text, attempt=claim.attempt))


def end(stage: Stage, claim: Claim, kind: str, data: bytes = b"", amount: int = 0, owner: str = OWNER) -> None:
    """Settle as a dispatcher does."""
    outcome = Outcome(claim.id, claim.token, kind, data, amount)
    assert stage.settle(outcome, owner=owner, starts=journal_notes([(outcome, claim)])).stale == []


def attempts(stage: Stage, id: str) -> tuple[AttemptRecord, ...]:
    (record,) = stage.run(produce.read(stage.keys, [id]))
    assert record is not None
    return record.attempts


def test_a_job_whose_first_start_succeeds_has_no_journal(stage: Stage) -> None:
    claim = stage.running(OWNER)
    end(stage, claim, "succeeded", b"r", KEEP)
    assert not {"journal", "attempts", "more"} & stage.record(claim.id).keys()
    assert attempts(stage, claim.id) == ()


def test_each_start_is_told_with_its_times_its_place_and_its_error(stage: Stage) -> None:
    claim = stage.running(OWNER, priority=2)
    stage.now += 2 * SECOND
    end(stage, claim, "retry", failure(claim, "first line\nsecond line"))
    stage.now += SECOND
    (again,) = stage.take(OWNER)
    assert again.journaled == 1
    stage.now += SECOND
    crashed = error_json(JobError(type="Crashed", message="its process left", attempt=2, exit_code=0, signal=9))
    end(stage, again, "crashed", crashed, KEEP)
    (last,) = stage.take(OWNER)
    stage.now += SECOND
    end(stage, last, "succeeded", b"r", KEEP)
    first, second, third = attempts(stage, claim.id)
    assert first == AttemptRecord(
        number=1, ready_us=START, started_us=claim.token, ended_us=START + 2 * SECOND, worker="host:7", outcome="retry",
        error="ValueError: first line",
    )  # fmt: skip
    assert (second.number, second.ready_us, second.started_us) == (2, START + 2 * SECOND, again.token)
    assert (second.outcome, second.signal, second.exit_code) == ("crashed", 9, 0)
    assert second.ended_us == START + 4 * SECOND
    assert (third.number, third.outcome, third.error, third.exit_code) == (3, "succeeded", "", None)


@pytest.mark.parametrize("kind", ["failed", "snoozed", "interrupted", "cancelled", "corrupt"])
def test_every_other_end_of_a_first_start_is_kept(stage: Stage, kind: str) -> None:
    claim = stage.running(OWNER)
    end(stage, claim, kind, b"" if kind == "snoozed" else failure(claim), KEEP)
    (one,) = attempts(stage, claim.id)
    assert (one.outcome, one.error) == (kind, "" if kind == "snoozed" else "ValueError: a value")


def test_what_keeps_its_place_was_not_ready_before_its_last_start_had_ended(stage: Stage) -> None:
    claim = stage.running(OWNER)
    stage.now += SECOND
    outcome = Outcome(claim.id, claim.token, "interrupted", b"", 0)
    stage.settle(outcome, owner=OWNER, ready=claim.score, starts=journal_notes([(outcome, claim)]))
    stage.now += SECOND
    (again,) = stage.take(OWNER)
    assert again.ready == START
    end(stage, again, "succeeded", b"r", KEEP)
    assert [one.ready_us for one in attempts(stage, claim.id)] == [START, START + SECOND]


@pytest.mark.parametrize("kind", ["released", "parked"])
def test_a_claim_whose_code_did_not_run_is_no_start(stage: Stage, kind: str) -> None:
    claim = stage.running(OWNER)
    end(stage, claim, kind)
    assert attempts(stage, claim.id) == ()


def test_an_end_before_the_code_began_is_no_start(stage: Stage) -> None:
    claim = stage.running(OWNER)
    end(stage, claim, "cancelled", error_json(JobError(type="Expired", message="too late")), KEEP)
    assert attempts(stage, claim.id) == ()


def test_the_first_three_and_the_last_seven_stay(stage: Stage) -> None:
    claim = stage.running(OWNER)
    for number in range(1, 26):
        stage.now += SECOND // 10
        end(stage, claim, "retry", failure(claim, f"number {number}"))
        (claim,) = stage.take(OWNER)
        assert claim.journaled == number
    kept = attempts(stage, claim.id)
    assert [one.number for one in kept] == [1, 2, 3, *range(19, 26)]
    assert [one.error for one in kept] == [f"ValueError: number {one.number}" for one in kept]


def test_its_size_is_bounded(stage: Stage) -> None:
    claim = stage.running(OWNER)
    for _ in range(12):
        end(stage, claim, "retry", failure(claim, "\N{SNOWMAN}" * 4000))
        (claim,) = stage.take(OWNER)
    assert len(stage.record(claim.id)["journal"]) < 10 * (JOURNAL_LINE + 80)


def test_the_first_line_is_cut_between_characters() -> None:
    text = type_and_first_line(JobError(type="E", message="\N{SNOWMAN}" * 100 + "\nmore"))
    assert text == "E: " + "\N{SNOWMAN}" * ((JOURNAL_LINE - 3) // 3)
    assert type_and_first_line(JobError(type="E")) == "E"


def test_a_retry_by_hand_adds_to_it(stage: Stage) -> None:
    claim = stage.running(OWNER)
    end(stage, claim, "failed", failure(claim), KEEP)
    assert stage.run(produce.rerun(stage.keys, claim.id, "r")) == "retried"
    (again,) = stage.take(OWNER)
    assert (again.attempt, again.journaled) == (1, 1)
    end(stage, again, "succeeded", b"r", KEEP)
    assert [(one.number, one.outcome) for one in attempts(stage, claim.id)] == [(1, "failed"), (2, "succeeded")]


@pytest.mark.parametrize(
    ("known", "why"), [(True, "the dispatcher of its worker died"), (False, "its worker ended or lost its lease")]
)
def test_what_a_dead_worker_ran_is_told(stage: Stage, known: bool, why: str) -> None:
    claim = stage.running(OWNER)
    stage.lapse()
    assert stage.run(consume.reclaim(stage.keys, OWNER, known_dead=known, limit=10, ttl=KEEP))[1] == 1
    (one,) = attempts(stage, claim.id)
    assert (one.ready_us, one.started_us, one.ended_us, one.outcome) == (0, claim.token, stage.now, "crashed")
    assert one.worker == f"host:{OWNER}"
    assert one.error == f"Crashed: {why} while it held the job"


@pytest.mark.mangles
@pytest.mark.parametrize("alien", [b"", b"\xc1", b"\x01", b"\x91\x01", msgspec.msgpack.encode({"a": 1})])
def test_an_alien_journal_holds_nobody_up(stage: Stage, alien: bytes) -> None:
    claim = stage.running(OWNER)
    stage.client.hset(stage.keys.job(claim.id), mapping={"journal": alien, "attempts": "x"})
    attempts(stage, claim.id)
    end(stage, claim, "failed", failure(claim), KEEP)
    assert stage.state(claim.id) == "failed"


def test_a_record_that_is_gone_gets_no_stub(stage: Stage) -> None:
    claim = stage.running(OWNER)
    stage.client.delete(stage.keys.job(claim.id))
    note = StartNote(claim.id, claim.ready, "ValueError")
    stage.settle(Outcome(claim.id, claim.token, "succeeded", b"", 0), owner=OWNER, starts=[note])
    assert stage.record(claim.id) == {}


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
