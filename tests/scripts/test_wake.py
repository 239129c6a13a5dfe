"""The included script ``wake``: one token a queue, and the queue is named."""

from __future__ import annotations

import pytest

from headrace.protocol import operations
from headrace.protocol.operations import pause, resume
from headrace.worker.dispatcher.dispatcher_events import HURRY
from tests.scripts.stage import Stage


def test_a_batch_over_many_queues_wakes_each(stage: Stage) -> None:
    stage.enqueue(*(stage.job(queue=f"q{n % 20}") for n in range(200)))
    assert [stage.tokens(f"q{n}") for n in range(20)] == [1] * 20
    assert stage.names("queues") == {f"q{n}" for n in range(20)}


def test_a_queue_is_named_again_after_it_was_purged(stage: Stage) -> None:
    stage.put()
    stage.run(operations.purge(stage.keys, "default"))
    assert stage.names("queues") == set()
    stage.put()
    assert stage.names("queues") == {"default"}


@pytest.mark.parametrize("queue", ["default", "other"])
def test_every_incarnation_hears_it_once(stage: Stage, queue: str) -> None:
    stage.run(pause(stage.keys, queue))
    ears = [stage.subscribe(stage.keys.mail(stage.register(owner))) for owner in ("w1", "w2")]
    stage.run(resume(stage.keys, queue))
    for ear in ears:
        assert ear.get_message(timeout=20)["data"] == HURRY.encode()
        assert ear.get_message(timeout=0) is None
        ear.close()
