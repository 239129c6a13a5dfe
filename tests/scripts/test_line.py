"""The included script ``line``: how a queue is woken, whichever way work comes."""

from __future__ import annotations

from headrace.protocol import admin, consume, produce
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
    stage.run(consume.promote(stage.keys, 10, stage.now))
    assert stage.tokens() == 1
    stage.doze()
    (claim,) = stage.take()
    stage.end(claim)
    stage.run(produce.rerun(stage.keys, claim.id, stage.now))
    assert stage.tokens() == 1


def test_a_batch_over_many_queues_wakes_each(stage: Stage) -> None:
    stage.enqueue(*(stage.job(queue=f"q{n % 20}") for n in range(200)))
    assert [stage.tokens(f"q{n}") for n in range(20)] == [1] * 20
    assert stage.names("queues") == {f"q{n}" for n in range(20)}


def test_a_queue_is_named_again_after_it_was_purged(stage: Stage) -> None:
    stage.put()
    stage.run(admin.purge(stage.keys, "default", now=stage.now))
    assert stage.names("queues") == set()
    stage.put()
    assert stage.names("queues") == {"default"}
