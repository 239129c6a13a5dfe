from __future__ import annotations

import pytest

from headrace.model.job import NO_LOG
from headrace.protocol import operations, produce
from headrace.protocol.consume import Note, note
from tests.scripts.stage import KEEP, Stage


def say(stage: Stage, *notes: Note, owner: str = "w1", most: int = 1000, request: int = 0) -> int:
    return stage.run(note(stage.keys, owner, notes, most, request))


def lines(stage: Stage, id: str) -> list[str]:
    return stage.run(operations.logs(stage.keys, id))


def test_progress_and_lines_are_stored(stage: Stage) -> None:
    claim = stage.running()
    assert say(stage, Note(claim.id, claim.token, 0.5, "half", ("one", "two"))) == 1
    record = stage.record(claim.id)
    assert (record["progress"], record["note"]) == (b"0.5", b"half")
    say(stage, Note(claim.id, claim.token, lines=("three",)))
    assert lines(stage, claim.id) == ["one", "two", "three"]
    assert stage.record(claim.id)["progress"] == b"0.5"


def test_what_a_middleware_swallowed_is_stored(stage: Stage) -> None:
    claim = stage.running()
    assert say(stage, Note(claim.id, claim.token, swallowed='{"type":"ValueError"}')) == 1
    assert stage.record(claim.id)["swallowed"] == b'{"type":"ValueError"}'
    assert "progress" not in stage.record(claim.id)


def test_an_older_start_is_not_heard(stage: Stage) -> None:
    old = stage.running()
    stage.end(old, "retry", b"", 0)
    assert say(stage, Note(old.id, old.token, 0.5, "", ("late",))) == 0
    stage.take()
    assert say(stage, Note(old.id, old.token, 0.5, "", ("late",))) == 0
    assert lines(stage, old.id) == []
    assert "progress" not in stage.record(old.id)


def test_a_lost_reply_stores_no_line_twice(stage: Stage) -> None:
    claim = stage.running()
    said = Note(claim.id, claim.token, None, "", ("once",))
    assert say(stage, said, request=8) == 1
    assert say(stage, said, request=8) == 0
    assert say(stage, said, request=9) == 1
    # One trip brought both, and is repeated.
    assert [say(stage, said, request=number) for number in (8, 9)] == [0, 0]
    assert lines(stage, claim.id) == ["once", "once"]


def test_a_claim_knows_whether_an_earlier_start_wrote_lines(stage: Stage) -> None:
    """Without a log its end need not remove one; a log that stayed would be a key without an owner."""
    quiet, said = stage.running(), stage.running()
    say(stage, Note(said.id, said.token, 0.5), Note(said.id, said.token, lines=("one",)))
    for claim in (quiet, said):
        stage.end(claim, "succeeded", b"\xc0", KEEP)
        stage.run(produce.rerun(stage.keys, claim.id, "again"))
    claims = {claim.id: claim for claim in stage.claim().jobs}
    assert [claims[one.id].logged for one in (quiet, said)] == [False, True]
    stage.end(claims[quiet.id], "succeeded", b"\xc0", NO_LOG)
    stage.end(claims[said.id], "succeeded", b"\xc0", 0)
    assert not stage.client.exists(stage.keys.job(said.id), stage.keys(f"log:{said.id}"))


@pytest.mark.parametrize("way", ["purge", "cancel", "delete", "fail", "crash"])
def test_a_log_leaves_with_its_job(stage: Stage, way: str) -> None:
    claim = stage.running()
    say(stage, Note(claim.id, claim.token, lines=("one",)))
    if way in ("purge", "cancel", "delete"):
        stage.end(claim, "retry", b"", 0)
    match way:
        case "purge":
            stage.run(operations.purge(stage.keys, "default", 100))
        case "cancel":
            stage.run(produce.cancel(stage.keys, claim.id, 0))
        case "delete":
            stage.run(produce.delete(stage.keys, claim.id))
        case "fail":
            stage.end(claim, "failed", b"{}", 0)
        case _:
            for _ in range(3):
                stage.end(claim, "crashed", b"{}", 0)
                claim = next(iter(stage.claim().jobs), claim)
    assert not stage.client.exists(stage.keys.job(claim.id), stage.keys(f"log:{claim.id}"))


def test_whoever_is_gone_leaves_no_trace(stage: Stage) -> None:
    assert say(stage, Note("0" * 21, 1, 0.5), request=8) == 0
    assert stage.client.dbsize() == 0


@pytest.mark.parametrize("count", [1, 999, 1000, 1001, 2500])
def test_the_last_lines_stay(stage: Stage, count: int) -> None:
    claim = stage.running()
    told = [f"line {n}" for n in range(count)]
    say(stage, Note(claim.id, claim.token, lines=tuple(told)), most=1000)
    assert lines(stage, claim.id) == told[-1000:]


def test_a_thousand_notes(stage: Stage) -> None:
    stage.put(1000)
    notes = [Note(c.id, c.token, 1.0, "done", ("x",)) for c in stage.take()]
    assert say(stage, *notes) == 1000
