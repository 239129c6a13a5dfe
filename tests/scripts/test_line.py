"""The included script ``line``: whichever way a job comes back, its queue is woken."""

from __future__ import annotations

from headrace.protocol import consume, produce
from tests.scripts.stage import SECOND, Stage


def test_each_way_in_wakes_the_queue_once(stage: Stage) -> None:
    claim = stage.running(delay=0)
    stage.doze()
    stage.end(claim, "retry", b"", 0)
    assert stage.tokens() == 1
    stage.doze()
    (claim,) = stage.take()
    stage.end(claim, "retry", b"", SECOND)
    assert stage.tokens() == 0
    stage.now += SECOND
    stage.run(consume.promote(stage.keys, 10))
    assert stage.tokens() == 1
    stage.doze()
    (claim,) = stage.take()
    stage.end(claim)
    stage.run(produce.rerun(stage.keys, claim.id, "r"))
    assert stage.tokens() == 1
