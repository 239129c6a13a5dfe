from __future__ import annotations

from typing import Any

import pytest

from headrace.model.unique_rules import UniqueRule
from headrace.protocol import consume, operations, produce
from headrace.testing import violations
from tests.scripts.stage import KEEP, SECOND, Stage
from tests.scripts.unique_stage import WITHIN, holder, one, only, put


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


@pytest.mark.parametrize("kind", ["retry", "snoozed", "crashed", "released", "interrupted", "parked"])
def test_what_goes_on_keeps_its_name(stage: Stage, kind: str) -> None:
    first = one(stage)
    (claim,) = stage.take()
    stage.end(claim, kind, b"{}", SECOND)
    assert put(stage)[1].duplicates
    assert holder(stage) == first


@pytest.mark.parametrize("kind", ["succeeded", "failed", "cancelled", "corrupt"])
@pytest.mark.parametrize("ttl", [0, KEEP])
def test_what_has_ended_frees_its_name(stage: Stage, kind: str, ttl: int) -> None:
    one(stage)
    (claim,) = stage.take()
    stage.end(claim, kind, b"{}", ttl)
    assert holder(stage) is None
    one(stage)


def test_a_job_that_crashes_too_often_frees_its_name(stage: Stage) -> None:
    one(stage, max_crashes=1)
    (claim,) = stage.take()
    stage.end(claim, "crashed", b"{}")
    assert stage.state(claim.id) == "quarantined"
    assert holder(stage) is None


@pytest.mark.parametrize("where", ["ready", "scheduled", "parked", "blocked"])
def test_a_cancelled_job_frees_its_name(stage: Stage, where: str) -> None:
    if where == "blocked":
        stage.put(key="k", ordered=True)
    facts: dict[str, Any] = {"scheduled": {"delay": SECOND}, "blocked": {"key": "k", "ordered": True}}.get(where, {})
    first = one(stage, **facts)
    if where == "parked":
        stage.end(only(stage), kind="parked")
    assert stage.state(first) == where
    assert stage.run(produce.cancel(stage.keys, first, KEEP)) == "cancelled"
    assert holder(stage) is None


def test_a_running_job_keeps_its_name_until_it_has_stopped(stage: Stage) -> None:
    first = one(stage)
    (claim,) = stage.take()
    assert stage.run(produce.cancel(stage.keys, first, KEEP)) == "asked"
    assert put(stage)[1].duplicates
    stage.end(claim, "cancelled", b"{}")
    assert holder(stage) is None


def test_a_purged_queue_frees_the_names_of_its_jobs(stage: Stage) -> None:
    one(stage)
    stage.run(operations.purge(stage.keys, "default", 100))
    assert holder(stage) is None


def test_the_jobs_of_a_dead_worker_keep_their_names_or_free_them(stage: Stage) -> None:
    one(stage)
    last = one(stage, UniqueRule("m"), max_crashes=1)
    stage.take()
    stage.run(consume.reclaim(stage.keys, "w1", True, 100, KEEP))
    assert put(stage)[1].duplicates
    assert stage.state(last) == "quarantined"
    assert holder(stage, "m") is None


def test_a_name_that_another_job_has_is_not_freed(stage: Stage) -> None:
    first = one(stage)
    (claim,) = stage.take()
    stage.client.set(stage.keys("unique:n"), "another")
    stage.end(claim, amount=0)
    assert holder(stage) == "another"
    stage.client.delete(stage.keys("unique:n"))
    assert stage.state(first) is None


def test_a_job_that_did_its_work_keeps_its_name_for_its_time(stage: Stage) -> None:
    first = one(stage, WITHIN)
    stage.end(only(stage), amount=0)
    assert stage.state(first) is None
    assert put(stage, WITHIN)[1].duplicates
    assert holder(stage) == first
    assert 0 < stage.client.pttl(stage.keys("unique:n")) <= 3600_000


@pytest.mark.parametrize("kind", ["failed", "cancelled", "corrupt"])
def test_a_job_that_did_not_do_its_work_frees_its_name_before_its_time(stage: Stage, kind: str) -> None:
    one(stage, WITHIN)
    stage.end(only(stage), kind, b"{}")
    assert holder(stage) is None


def test_a_time_that_is_over_lets_another_job_have_the_name(stage: Stage) -> None:
    first = one(stage, WITHIN)
    stage.client.delete(stage.keys("unique:n"))  # as its expiry does
    second = one(stage, WITHIN)
    claims = {claim.id: claim for claim in stage.take()}
    stage.end(claims[first], "failed", b"{}")
    assert holder(stage) == second
