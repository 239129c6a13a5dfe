from __future__ import annotations

from headrace.protocol import produce
from headrace.testing import violations
from tests.scripts.stage import SECOND, Stage
from tests.scripts.unique_stage import holder, one, only, put


def test_a_job_that_expired_before_its_start_does_not_block_its_name(stage: Stage) -> None:
    old = one(stage, expires=SECOND)
    stage.now += 2 * SECOND
    new = one(stage)
    claims = {claim.id: claim for claim in stage.take()}
    assert violations(stage.client, ahead=3 * SECOND) == set()
    stage.end(claims[old], "cancelled", b"{}")
    assert holder(stage) == new


def test_a_lost_record_does_not_block_its_name(stage: Stage) -> None:
    lost = one(stage)
    stage.client.delete(stage.keys.job(lost))
    stage.client.zrem(stage.keys("ready:default"), lost)
    new = one(stage)
    assert holder(stage) == new


def test_a_retry_by_hand_takes_the_name_again(stage: Stage) -> None:
    first = one(stage)
    stage.end(only(stage), kind="failed", data=b"{}")
    assert stage.run(produce.rerun(stage.keys, first, "r")) == "retried"
    assert holder(stage) == first
    assert put(stage)[1].duplicates


def test_a_retry_by_hand_is_refused_while_another_job_has_the_name(stage: Stage) -> None:
    first = one(stage)
    stage.end(only(stage), kind="failed", data=b"{}")
    second = one(stage)
    assert stage.run(produce.rerun(stage.keys, first, "r")) == f"taken {second}"
    assert stage.state(first) == "failed"
