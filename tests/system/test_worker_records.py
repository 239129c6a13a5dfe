"""Alien bytes, truncated and missing records: named, moved out of the way, and the queue goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from headrace.errors import JobQuarantined
from headrace.model.job import State
from headrace.tasks.job_handle import Job
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
    assert [mate.result(timeout=60) for mate in mates] == [2] * 4
    with pytest.raises(JobQuarantined, match="Corrupt"):
        job.result(timeout=60)
    assert not fleet.ledger.starts(job.id)
    assert {mate.refresh().crashes for mate in mates} == {0}


@pytest.mark.parametrize("field", ["failures", "crashes", "interruptions", "snoozes", "priority", "budget", "expires"])
def test_a_number_that_is_none_does_no_harm(fleet: Fleet, client: redis.Redis, field: str) -> None:
    job = fleet.enqueue("process.fail", 1, retries=3)
    mate = fleet.enqueue("process.add", 1, 1)
    client.hset(_key(job), mapping={field: "many", "more": 1})
    worker = fleet.worker()
    assert mate.result(timeout=60) == 2
    assert fleet.ended(job).state in (State.SUCCEEDED, State.QUARANTINED)
    assert "Traceback" not in worker.log()


@pytest.mark.parametrize("priority", ["1e308", "-1e308", "nan", "9" * 30])
def test_a_priority_that_no_number_holds_quarantines_its_job_alone(
    fleet: Fleet, client: redis.Redis, priority: str
) -> None:
    """It comes into the score of its queue when the job lines up again."""
    job = fleet.enqueue("process.add", 1, 1, delay=0.2)
    mates = [fleet.enqueue("process.add", 1, 1, delay=0.2) for _ in range(3)]
    client.hset(_key(job), "priority", priority)
    worker = fleet.worker()
    assert [mate.result(timeout=60) for mate in mates] == [2] * 3
    # Of one that is no number the score is that of the oldest job.
    expected = (State.SUCCEEDED, State.QUARANTINED) if priority == "nan" else (State.QUARANTINED,)
    assert fleet.ended(job).state in expected
    assert {mate.refresh().crashes for mate in mates} == {0}
    assert "Traceback" not in worker.log()


def test_numbers_larger_than_a_message_holds_do_no_harm(fleet: Fleet, client: redis.Redis) -> None:
    job, mate = fleet.enqueue("process.add", 1, 1), fleet.enqueue("process.add", 1, 1)
    client.hset(_key(job), mapping={"failures": "9" * 30, "expires": "9" * 30, "more": 1})
    far = fleet.enqueue("process.add", 1, 1)
    client.zadd("{hr:0}:ready:default", {far.id: 1e300})
    worker = fleet.worker()
    assert mate.result(timeout=60) == job.result(timeout=60) == 2
    assert fleet.ended(far).state is State.QUARANTINED
    assert "Traceback" not in worker.log()


@pytest.mark.mangles
def test_names_that_are_no_text_do_no_harm(fleet: Fleet, client: redis.Redis, tmp_path: Path) -> None:
    alien = b"\xff\xfe\x00 alien"
    job = fleet.enqueue("process.gate", str(tmp_path / "go"))
    worker = fleet.worker()
    fleet.started(job)
    (owner,) = [seen.owner for seen in fleet.app.overview().workers]
    # A job of its own with such an id, and the id alone wherever an id, a task or an owner may be.
    client.hset(b"{hr:0}:job:" + alien, mapping={"task": "process.add", "st": "ready", "queue": "default"})
    client.zadd("{hr:0}:ready:default", {alien: 1})
    client.zadd("{hr:0}:ready:default", {b"\xff gone": 1})
    client.zadd("{hr:0}:scheduled", {alien + b" later": "+inf"})
    client.sadd(f"{{hr:0}}:cancels:{owner}", alien)
    client.sadd("{hr:0}:parking", alien)
    client.zadd("{hr:0}:owners", {alien: 1})
    client.publish(f"{{hr:0}}:mail:{owner}", alien)
    client.publish(f"{{hr:0}}:mail:{owner}", "renew")
    # Half of a lease's renewals have seen all of it.
    fleet.until(lambda: alien not in client.zrange("{hr:0}:owners", 0, -1))
    mate = fleet.enqueue("process.add", 1, 1)
    (tmp_path / "go").touch()
    assert (job.result(timeout=60), mate.result(timeout=60)) == (1, 2)
    fleet.until(lambda: client.hget(b"{hr:0}:job:" + alien, "st") == b"quarantined")
    assert "Traceback" not in worker.log()
    fleet.app.overview()


def test_a_record_without_its_task_is_quarantined(fleet: Fleet, client: redis.Redis) -> None:
    job = fleet.enqueue("process.add", 1, 1)
    mate = fleet.enqueue("process.add", 1, 1)
    client.hdel(_key(job), "task")
    worker = fleet.worker()
    assert mate.result(timeout=60) == 2
    assert fleet.ended(job).state is State.QUARANTINED
    fleet.until(lambda: job.id in worker.log())


def test_a_job_whose_time_is_over_does_not_start(fleet: Fleet) -> None:
    late = fleet.enqueue("process.add", 1, 1, expires=0.001)
    timely = fleet.enqueue("process.add", 1, 1, expires=60)
    fleet.worker()
    assert timely.result(timeout=60) == 2
    ended = fleet.ended(late)
    assert (ended.state, ended.error and ended.error.type) == (State.CANCELLED, "Expired")
    assert not fleet.ledger.starts(late.id)


def test_a_job_whose_record_is_gone_leaves_the_queue(fleet: Fleet, client: redis.Redis) -> None:
    gone = fleet.enqueue("process.add", 1, 1)
    mate = fleet.enqueue("process.add", 1, 1)
    client.delete(_key(gone))
    worker = fleet.worker()
    assert mate.result(timeout=60) == 2
    fleet.until(lambda: gone.id in worker.log())
    assert fleet.app.queues["default"].size == 0


@pytest.mark.mangles
def test_a_record_of_another_type_leaves_the_queue(fleet: Fleet, client: redis.Redis) -> None:
    alien = fleet.enqueue("process.add", 1, 1)
    mate = fleet.enqueue("process.add", 1, 1)
    client.delete(_key(alien))
    client.set(_key(alien), "not a hash")
    worker = fleet.worker()
    assert mate.result(timeout=60) == 2
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
    assert fleet.enqueue("process.add", 1, 1).result(timeout=60) == 2
    fleet.until(lambda: fleet.app.overview().states.get("running", 0) == 0)
    assert not client.exists(_key(job))


@pytest.mark.mangles
def test_a_ready_index_of_another_type_stops_its_queue_only(fleet: Fleet, client: redis.Redis) -> None:
    client.set("{hr:0}:ready:broken", "not a zset")
    client.sadd("{hr:0}:queues", "broken")
    worker = fleet.worker(queues="good", ready=False)
    broken = fleet.worker(queues="broken", ready=False)
    assert fleet.enqueue("process.add", 1, 1, queue="good").result(timeout=60) == 2
    fleet.until(lambda: "WRONGTYPE" in broken.log())
    assert worker.alive
    assert broken.alive
    client.delete("{hr:0}:ready:broken")
    assert fleet.enqueue("process.add", 1, 1, queue="broken").result(timeout=60) == 2


def test_stored_task_names_that_are_no_labels_stop_nothing(fleet: Fleet, client: redis.Redis) -> None:
    """The statistics of one ended the dispatcher, and the jobs beside it counted a crash."""
    mate = fleet.enqueue("process.nap", 3)
    names = ["bad\x1b[31m", "a\nb", "x" * 600, "a//"]
    jobs = [fleet.enqueue("process.add", 1, 1) for _ in names]
    for job, name in zip(jobs, names, strict=True):
        client.hset(_key(job), "task", name)
    worker = fleet.worker(processes=2)
    fleet.until(lambda: all(job.refresh().state is not State.READY for job in jobs))
    before = worker.dispatcher()
    # Statistics are passed on once a second.
    mate.result(timeout=60)
    assert (worker.dispatcher(), mate.refresh().crashes) == (before, 0)
    assert "Traceback" not in worker.log()
    assert "\x1b" not in worker.log()
