from __future__ import annotations

import pytest

from headrace.errors import ArgumentError
from headrace.model.job import JobError, State, error_json
from headrace.protocol import consume, produce
from headrace.protocol.produce import read
from tests.scripts.stage import ARGS, KEEP, SECOND, START, Stage


def test_everything_stored_is_told(stage: Stage) -> None:
    claim = stage.running(queue="q", priority=3, key="k", expires=KEEP, options=b"\x81")
    note = consume.Note(claim.id, claim.token, 0.25, "half way to half way")
    stage.run(consume.note(stage.keys, "w1", [note]))
    (record,) = stage.run(read(stage.keys, [claim.id]))
    assert record is not None
    assert (record.id, record.state, record.task, record.queue) == (claim.id, State.RUNNING, "add", "q")
    assert (record.packed_args, record.options, record.priority, record.key) == (ARGS, b"\x81", 3, "k")
    assert (record.started_us, record.expires_us, record.owner, record.attempt) == (claim.token, START + KEEP, "w1", 1)
    assert (record.progress, record.progress_text) == (0.25, "half way to half way")
    assert (record.finished_us, record.packed_result, record.error) == (0, None, None)
    assert record.created_us == START


def test_when_a_waiting_job_is_due(stage: Stage) -> None:
    ready, later = stage.put(priority=1)[0], stage.put(delay=SECOND)[0]
    one, two = stage.run(read(stage.keys, [ready, later]))
    assert one is not None
    assert two is not None
    assert (one.due_us, two.due_us) == (START, START + SECOND)


def test_what_is_not_stored_is_none(stage: Stage) -> None:
    (id,) = stage.put()
    assert [r and r.id for r in stage.run(read(stage.keys, ["0" * 21, id, "1" * 21]))] == [None, id, None]
    assert stage.run(read(stage.keys, [])) == []


def test_five_hundred_at_once(stage: Stage) -> None:
    ids = stage.put(500)
    assert [r and r.id for r in stage.run(read(stage.keys, ids))] == ids


def test_an_error_is_structured_text(stage: Stage) -> None:
    id = stage.finished("failed", b'{"type":"ValueError","message":"no"}')
    (record,) = stage.run(read(stage.keys, [id]))
    assert record is not None
    assert record.error is not None
    assert (record.error.type, record.error.message) == ("ValueError", "no")
    assert (record.state, record.finished_us) == (State.FAILED, START)


@pytest.mark.mangles
def test_a_record_of_another_type_is_named(stage: Stage) -> None:
    stage.client.set(stage.keys.job("0" * 21), "alien")
    (record,) = stage.run(read(stage.keys, ["0" * 21]))
    assert record is not None
    assert record.state is State.QUARANTINED
    assert record.error is not None
    assert record.error.type == "Corrupt"


@pytest.mark.mangles
def test_alien_fields_are_shown_and_do_not_raise(stage: Stage) -> None:
    (id,) = stage.put()
    fields = ("st", "task", "queue", "priority", "token", "failures", "progress", "error", "key", "\udc80alien")
    alien = {name.encode("utf-8", "surrogateescape"): b"\xff\x00" for name in fields}
    stage.client.hset(stage.keys.job(id), mapping=alien)
    (record,) = stage.run(produce.read(stage.keys, [id]))
    assert record is not None
    assert (record.state, record.priority, record.failures) == (State.QUARANTINED, 0, 0)
    assert record.fields["task"] == b"\xff\x00"


def test_a_claim_that_came_to_nothing_began_nothing(stage: Stage) -> None:
    parked, back = stage.running(), stage.running()
    stage.end(parked, "parked")
    stage.end(back, "released")
    for record in stage.run(read(stage.keys, [parked.id, back.id])):
        assert record is not None
        assert (record.attempt, record.started_us) == (0, 0)


@pytest.mark.parametrize("kind", ["cancelled", "corrupt", "failed", "retry", "crashed", "succeeded"])
def test_every_start_is_one_however_it_ended(stage: Stage, kind: str) -> None:
    claim = stage.running()
    error = error_json(JobError(type="Cancelled", message="cancelled while it ran", attempt=1))
    stage.end(claim, kind, error if kind != "succeeded" else b"\xc0", SECOND)
    (record,) = stage.run(read(stage.keys, [claim.id]))
    assert record is not None
    assert (record.attempt, record.started_us) == (1, claim.token)


def test_one_that_was_cancelled_before_it_started_had_no_start(stage: Stage) -> None:
    (id,) = stage.put()
    stage.run(produce.cancel(stage.keys, id, KEEP))
    (record,) = stage.run(read(stage.keys, [id]))
    assert record is not None
    assert (record.state, record.attempt, record.started_us) == (State.CANCELLED, 0, 0)


def test_a_list_leaves_long_arguments_and_results_in_the_store(stage: Stage) -> None:
    id = stage.finished("succeeded", b"\xa6result")
    stage.client.hset(stage.keys.job(id), "args", b"x" * 5000)
    short, whole = (stage.run(read(stage.keys, [id, "0" * 21], lean=lean)) for lean in (True, False))
    assert short[1] is whole[1] is None
    assert short[0] is not None
    assert whole[0] is not None
    assert (short[0].left_out, short[0].packed_args, short[0].packed_result) == (5000, b"", None)
    assert (whole[0].left_out, len(whole[0].packed_args), whole[0].packed_result) == (0, 5000, b"\xa6result")
    left_out = {"args", "result", "left_out"}
    assert {k: v for k, v in short[0].fields.items() if k not in left_out} == {
        k: v for k, v in whole[0].fields.items() if k not in left_out
    }
    with pytest.raises(ArgumentError, match=r"5,000 bytes.*app\.jobs\.get"):
        short[0].arguments  # noqa: B018 - it is decoded when it is asked for


def test_a_list_shows_what_is_no_job(stage: Stage) -> None:
    alien = stage.keys.job("0" * 21)
    stage.client.set(alien, "text")
    (record,) = stage.run(read(stage.keys, ["0" * 21], lean=True))
    assert record is not None
    assert record.state is State.QUARANTINED
    stage.client.delete(alien)
