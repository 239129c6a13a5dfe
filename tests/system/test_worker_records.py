"""Alien bytes, truncated and missing records: named, moved out of the way, and the queue goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from headrace.errors import JobQuarantined
from headrace.handle import Job
from headrace.job import State
from tests.system.fleet import Fleet

ALIEN = b"\xc1\xff\x00\xfe not ours"


def _key(job: Job[object]) -> str:
    return f"{{hr:0}}:job:{job.id}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("args", ALIEN),
        ("args", b"\x92\x91"),
        ("args", b""),
        ("options", ALIEN),
        ("options", b"\x81\xa7retries\xa3six"),
    ],
)
def test_a_record_with_alien_bytes_is_quarantined_and_named(
    fleet: Fleet, client: redis.Redis, field: str, value: bytes
) -> None:
    mates = [fleet.enqueue("process.add", 1, 1) for _ in range(2)]
    job = fleet.enqueue("process.add", 1, 1)
    mates += [fleet.enqueue("process.add", 1, 1) for _ in range(2)]
    client.hset(_key(job), mapping={field: value, "more": 1})
    fleet.worker()
    assert [mate.result(timeout=20) for mate in mates] == [2] * 4
    with pytest.raises(JobQuarantined, match="Corrupt"):
        job.result(timeout=20)
    assert not fleet.ledger.starts(job.id)
    assert {mate.refresh().crashes for mate in mates} == {0}


@pytest.mark.parametrize("field", ["failures", "crashes", "interruptions", "snoozes", "priority", "budget", "expires"])
def test_a_number_that_is_none_does_no_harm(fleet: Fleet, client: redis.Redis, field: str) -> None:
    job = fleet.enqueue("process.fail", 1, retries=3)
    mate = fleet.enqueue("process.add", 1, 1)
    client.hset(_key(job), mapping={field: "many", "more": 1})
    worker = fleet.worker()
    assert mate.result(timeout=20) == 2
    assert fleet.ended(job).state in (State.SUCCEEDED, State.QUARANTINED)
    assert "Traceback" not in worker.log()


def test_a_record_without_its_task_is_quarantined(fleet: Fleet, client: redis.Redis) -> None:
    job = fleet.enqueue("process.add", 1, 1)
    mate = fleet.enqueue("process.add", 1, 1)
    client.hdel(_key(job), "task")
    worker = fleet.worker()
    assert mate.result(timeout=20) == 2
    assert fleet.ended(job).state is State.QUARANTINED
    assert job.id in worker.log()


def test_a_job_whose_time_is_over_does_not_start(fleet: Fleet) -> None:
    late = fleet.enqueue("process.add", 1, 1, expires=0.001)
    timely = fleet.enqueue("process.add", 1, 1, expires=60)
    fleet.worker()
    assert timely.result(timeout=20) == 2
    ended = fleet.ended(late)
    assert (ended.state, ended.error and ended.error.type) == (State.CANCELLED, "Expired")
    assert not fleet.ledger.starts(late.id)


def test_a_job_whose_record_is_gone_leaves_the_queue(fleet: Fleet, client: redis.Redis) -> None:
    gone = fleet.enqueue("process.add", 1, 1)
    mate = fleet.enqueue("process.add", 1, 1)
    client.delete(_key(gone))
    worker = fleet.worker()
    assert mate.result(timeout=20) == 2
    fleet.until(lambda: gone.id in worker.log())
    assert fleet.app.queues["default"].size == 0


@pytest.mark.mangles
def test_a_record_of_another_type_leaves_the_queue(fleet: Fleet, client: redis.Redis) -> None:
    alien = fleet.enqueue("process.add", 1, 1)
    mate = fleet.enqueue("process.add", 1, 1)
    client.delete(_key(alien))
    client.set(_key(alien), "not a hash")
    worker = fleet.worker()
    assert mate.result(timeout=20) == 2
    fleet.until(lambda: alien.id in worker.log())
    assert fleet.app.queues["default"].size == 0


@pytest.mark.mangles
def test_a_record_that_goes_away_while_its_job_runs_harms_nobody(
    fleet: Fleet, client: redis.Redis, tmp_path: Path
) -> None:
    fleet.worker(processes=2)
    job = fleet.enqueue("process.gate", str(tmp_path / "go"))
    fleet.started(job)
    client.delete(_key(job))
    (tmp_path / "go").touch()
    assert fleet.enqueue("process.add", 1, 1).result(timeout=20) == 2
    fleet.until(lambda: fleet.app.overview().states.get("running", 0) == 0)


@pytest.mark.mangles
def test_a_ready_index_of_another_type_stops_its_queue_only(fleet: Fleet, client: redis.Redis) -> None:
    client.set("{hr:0}:ready:broken", "not a zset")
    client.sadd("{hr:0}:queues", "broken")
    worker = fleet.worker(queues="good", ready=False)
    broken = fleet.worker(queues="broken", ready=False)
    assert fleet.enqueue("process.add", 1, 1, queue="good").result(timeout=20) == 2
    fleet.until(lambda: "WRONGTYPE" in broken.log())
    assert worker.alive
    assert broken.alive
    client.delete("{hr:0}:ready:broken")
    assert fleet.enqueue("process.add", 1, 1, queue="broken").result(timeout=20) == 2
