"""The included script ``changed``: callers that read the changes of a job hear of each."""

from __future__ import annotations

import pytest

from headrace.protocol import produce
from headrace.protocol.consume import Note, note
from tests.scripts.stage import KEEP, SECOND, Stage


def follow(stage: Stage, id: str) -> produce.Watched:
    return stage.run(produce.watch(stage.keys, id, 5 * SECOND, follow=True))


def test_a_start_progress_and_a_retry_are_announced_to_readers_only(stage: Stage) -> None:
    read, waited = stage.put(2)
    seen = [follow(stage, read).change]
    stage.run(produce.watch(stage.keys, waited, 5 * SECOND))
    ear = stage.subscribe(stage.keys.done(read))
    ear.subscribe(stage.keys.done(waited))
    first, second = stage.take()
    seen.append(follow(stage, read).change)
    for claim in (first, second):
        stage.run(note(stage.keys, "w1", [Note(claim.id, claim.token, 0.5, "half")]))
        seen.append(follow(stage, read).change)
        stage.end(claim, "retry", b"{}", KEEP)
    messages = [ear.get_message(timeout=20) for _ in range(4)]
    assert [(m["channel"].decode(), m["data"]) for m in messages[1:]] == [(stage.keys.done(read), b"~")] * 3
    assert ear.get_message(timeout=0.05) is None
    assert len(set(seen)) == 3
    ear.close()


@pytest.mark.parametrize("end", ["succeeded", "cancelled"])
def test_a_reader_hears_of_the_end_once(stage: Stage, end: str) -> None:
    claim = stage.running()
    follow(stage, claim.id)
    ear = stage.subscribe(stage.keys.done(claim.id))
    stage.end(claim, end, b"")
    messages = [ear.get_message(timeout=20), *iter(lambda: ear.get_message(timeout=0.2), None)]
    assert [m["data"] for m in messages if m["data"] != b"~"] == [end.encode()]
    ear.close()


def test_a_reader_that_left_is_not_told(stage: Stage) -> None:
    claim = stage.running()
    follow(stage, claim.id)
    ear = stage.subscribe(stage.keys.done(claim.id))
    stage.now += 6 * SECOND
    stage.run(note(stage.keys, "w1", [Note(claim.id, claim.token, 0.5, "half")]))
    assert ear.get_message(timeout=0.05) is None
    ear.close()
