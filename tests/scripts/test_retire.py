from __future__ import annotations

from headrace.protocol.consume import retire
from headrace.protocol.produce import cancel
from tests.scripts.stage import KEEP, Stage


def test_who_holds_nothing_leaves_without_a_trace(stage: Stage) -> None:
    stage.register(tasks={"add": "process"})
    for _ in range(2):
        assert stage.run(retire(stage.keys, "w1"))
        assert stage.left() == set()


def test_who_holds_a_job_stays(stage: Stage) -> None:
    claim = stage.running()
    stage.run(cancel(stage.keys, claim.id, KEEP))
    before = stage.everything()
    assert not stage.run(retire(stage.keys, "w1"))
    assert stage.everything() == before
    stage.end(claim, "cancelled")
    assert stage.run(retire(stage.keys, "w1"))
    assert stage.members("owners") == {}
