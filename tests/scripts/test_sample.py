from __future__ import annotations

from headrace.protocol.operations import sample
from tests.scripts.stage import SECOND, Stage


def test_the_first_of_each_minute_learns_how_many_jobs_are_ready(stage: Stage) -> None:
    stage.now -= stage.now % (60 * SECOND)
    stage.put(3)
    stage.put(2, queue="slow")
    assert stage.run(sample(stage.keys)) == (stage.now, {"default": 3, "slow": 2})
    stage.now += 59 * SECOND
    assert stage.run(sample(stage.keys)) == (stage.now, None)
    stage.take()
    stage.now += SECOND
    assert stage.run(sample(stage.keys)) == (stage.now, {"slow": 2})


def test_a_store_without_jobs_is_a_sample_of_none(stage: Stage) -> None:
    assert stage.run(sample(stage.keys)) == (stage.now, {})
