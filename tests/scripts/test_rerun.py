from __future__ import annotations

import pytest

from headrace.protocol.produce import rerun
from tests.scripts.stage import KEEP, LEVEL, SECOND, Stage


@pytest.mark.parametrize("kind", ["succeeded", "failed", "cancelled", "corrupt"])
def test_a_finished_job_starts_afresh(stage: Stage, kind: str) -> None:
    claim = stage.running(priority=1, expires=SECOND, at_most_once=True, key="k", options=b"\x81")
    stage.end(claim, "snoozed", b"", 0)
    (claim,) = stage.take()
    stage.end(claim, kind, b"told")
    stage.doze()
    stage.now += 5 * SECOND
    assert stage.run(rerun(stage.keys, claim.id, "r")) == "retried"
    assert stage.members("ready:default") == {claim.id: stage.now - LEVEL}
    fields = {"st", "task", "options", "priority", "once", "key", "token", "retried"}
    assert stage.record(claim.id).keys() - {"more"} == fields - {"more"}
    assert stage.bytes() == 0
    assert stage.members("expires") == {}
    assert stage.tokens() == 1
    stage.register("w2")
    (again,) = stage.claim("w2").jobs
    assert again.attempt == 1
    assert again.token > claim.token


def test_the_same_request_again_changes_nothing_and_another_one_is_told_the_state(stage: Stage) -> None:
    id = stage.finished()
    stage.run(rerun(stage.keys, id, "r"))
    before = stage.everything()
    assert stage.run(rerun(stage.keys, id, "r")) == "retried"
    assert stage.run(rerun(stage.keys, id, "another")) == "ready"
    assert stage.everything() == before


def test_what_has_not_ended_stays_as_it_is(stage: Stage) -> None:
    running = stage.running()
    ready, scheduled = stage.put()[0], stage.put(delay=SECOND)[0]
    before = stage.everything()
    answers = [stage.run(rerun(stage.keys, id, "r")) for id in (running.id, ready, scheduled, "0" * 21)]
    assert answers == ["running", "ready", "scheduled", "missing"]
    assert stage.everything() == before


def test_the_other_kept_jobs_keep_their_bytes(stage: Stage) -> None:
    one, _ = stage.finished(data=b"123"), stage.finished("failed", b"45", KEEP)
    stage.run(rerun(stage.keys, one, "r"))
    assert stage.bytes() == 2
