"""Alien bytes, truncated and missing records: named, moved out of the way, and the queue goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from headrace.errors import JobQuarantined
from headrace.model.ids import shard_of
from headrace.model.job import State
from headrace.tasks.job_handle import Job
from tests.system.fleet import Fleet

ALIEN = b"\xc1\xff\x00\xfe not ours"


def _prefix(job: Job[object]) -> str:
    return f"{{hr:{shard_of(job.id)}}}:"


def _key(job: Job[object]) -> str:
    return f"{_prefix(job)}job:{job.id}"


UNREADABLE = (
    ("args", ALIEN), ("args", b"\x92\x91"), ("args", b""), ("options", ALIEN), ("options", b"\x81\xa7retries\xa3six"),
    ("headers", b"\x81\xa6tenant\x01"),
)  # fmt: skip
NUMBERS = ("failures", "crashes", "interruptions", "snoozes", "priority", "budget", "expires")
PRIORITIES = ("1e308", "-1e308", "nan", "9" * 30)


def test_each_bad_record_is_quarantined_alone_and_named(fleet: Fleet, client: redis.Redis) -> None:
    def good(**options: float) -> Job[int]:
        return fleet.enqueue("process.add", 1, 1, **options)

    mates, unreadable = [good()], list[Job[int]]()
    for field, value in UNREADABLE:
        unreadable.append(good())
        client.hset(_key(unreadable[-1]), mapping={field: value, "more": 1})
        mates.append(good())
    numbers = [fleet.enqueue("process.fail", 1, retries=3) for _ in NUMBERS]
    for job, field in zip(numbers, NUMBERS, strict=True):
        client.hset(_key(job), mapping={field: "many", "more": 1})
    # A priority comes into the score of its queue when the job lines up again.
    late = [good(delay=0.2) for _ in PRIORITIES]
    for job, priority in zip(late, PRIORITIES, strict=True):
        client.hset(_key(job), "priority", priority)
    large, far, nameless = good(), good(), good()
    client.hset(_key(large), mapping={"failures": "9" * 30, "expires": "9" * 30, "more": 1})
    client.zadd(f"{_prefix(far)}ready:default", {far.id: 1e300})
    client.hdel(_key(nameless), "task")
    expired = good(expires=0.001)
    mates += [good(), good(delay=0.2), good(expires=60), large]
    worker = fleet.worker()
    assert [mate.result(timeout=60) for mate in mates] == [2] * len(mates)
    for job in unreadable:
        with pytest.raises(JobQuarantined, match="Corrupt"):
            job.result(timeout=60)
        assert not fleet.ledger.starts(job.id)
    assert {fleet.ended(job).state for job in numbers} <= {State.SUCCEEDED, State.QUARANTINED}
    ends = dict(zip(PRIORITIES, (fleet.ended(job).state for job in late), strict=True))
    # Of one that is no number the score is that of the oldest job.
    assert ends.pop("nan") in (State.SUCCEEDED, State.QUARANTINED)
    assert {*ends.values(), fleet.ended(far).state, fleet.ended(nameless).state} == {State.QUARANTINED}
    fleet.until(lambda: nameless.id in worker.log())
    error = fleet.ended(expired).error
    assert (expired.state, error and error.type) == (State.CANCELLED, "Expired")
    assert not fleet.ledger.starts(expired.id)
    assert {mate.refresh().crashes for mate in mates} == {0}
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


@pytest.mark.mangles
def test_a_job_whose_record_is_gone_or_of_another_type_leaves_the_queue(
    fleet: Fleet, client: redis.Redis, tmp_path: Path
) -> None:
    gone, other, mate = (fleet.enqueue("process.add", 1, 1) for _ in range(3))
    client.delete(_key(gone), _key(other))
    client.set(_key(other), "not a hash")
    worker = fleet.worker(processes=2)
    assert mate.result(timeout=60) == 2
    fleet.until(lambda: gone.id in worker.log() and other.id in worker.log())
    assert fleet.app.queues["default"].size == 0
    # And one whose record goes away while it runs.
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
