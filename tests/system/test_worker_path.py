"""The happy path: every kind of runner does every thing that a job may do, and nothing is started twice."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import redis

from headrace.errors import JobFailed
from headrace.model.job import State
from headrace.protocol.operations import resume
from headrace.tasks.job_handle import Job
from tests.servers import Server
from tests.system.fleet import ALL, KINDS, Fleet, NewFleet

BRIEF = 3.0
"""A lease that is renewed often, for tests that wait for that and run nothing which its end would harm."""


def test_one_worker_does_all_that_a_job_may_ask_in_each_kind(
    server: Server, new_fleet: NewFleet, tmp_path: Path
) -> None:
    """The next renewal of the lease, which tells what is due as well, comes after the test."""
    fleet = new_fleet(server.url, lease=300)
    fleet.worker(kinds=ALL)
    once = [fleet.enqueue(f"{kind}.add", n, n) for n in range(20) for kind in KINDS]
    lucky = [fleet.enqueue(f"{kind}.fail", 2, retries=3) for kind in KINDS]
    luckless = [fleet.enqueue(f"{kind}.fail", 5, retries=1) for kind in KINDS]
    snoozed = [fleet.enqueue(f"{kind}.snooze", 2, retries=0) for kind in KINDS]
    late = fleet.enqueue("process.fail", 1, retries=1, delay=5)
    assert late.state is State.SCHEDULED
    assert [job.result(timeout=60) for job in once] == [2 * n for n in range(20) for _ in KINDS]
    starts, ends = fleet.ledger.counts("S"), fleet.ledger.counts("E")
    assert {(starts[job.id], ends[job.id], job.refresh().attempt) for job in once} == {(1, 1, 1)}
    for job in lucky:
        assert job.result(timeout=60) == 3
        assert [line.attempt for line in fleet.ledger.starts(job.id)] == [1, 2, 3]
    for job in luckless:
        with pytest.raises(JobFailed, match="ValueError: not yet"):
            job.result(timeout=60)
        assert (len(fleet.ledger.starts(job.id)), job.refresh().failures) == (2, 2)
    for job in snoozed:
        assert job.result(timeout=60) == 3
        assert (job.refresh().snoozes, job.refresh().failures) == (2, 0)
    assert late.result(timeout=60) == 2
    assert late.refresh().started_us - late.refresh().created_us >= 5_000_000
    # Progress and log are there while a job runs.
    for kind in KINDS:
        go = tmp_path / kind
        job = fleet.enqueue(f"{kind}.say", str(go))
        fleet.until(lambda job=job: job.refresh().progress == 0.5 and job.logs())
        assert (job.state, job.refresh().progress_text) == (State.RUNNING, "half")
        assert job.logs() == ["a line", "another"]
        go.touch()
        assert job.result(timeout=60) == "said"
        assert job.refresh().progress == 1.0


def test_burst_takes_what_is_ready_and_due_and_leaves_what_is_paused(fleet: Fleet) -> None:
    """And what was paused until before it came; a burst that has nothing to do leaves at once."""
    queues = fleet.app.queues
    queues["held"].pause()
    queues["over"].pause(0.001)
    held, over = (fleet.enqueue("process.add", 1, 1, queue=name) for name in ("held", "over"))
    due = fleet.enqueue("process.add", 2, 2, delay=0.001)
    jobs = fleet.enqueue_many("process.add", [(n, n) for n in range(200)])
    now = fleet.app.overview().now
    fleet.until(lambda: fleet.app.overview().now > now + 10_000)
    assert queues["over"].paused, "a worker has to resume it"
    for _ in range(2):
        assert fleet.worker(ready=False, processes=2, burst=True, queues="held,over,default").wait() == 0
    assert held.state is State.READY
    assert {job.state for job in (over, due, *jobs)} == {State.SUCCEEDED}
    assert set(fleet.ledger.counts().values()) == {1}
    assert not fleet.app.overview().workers
    assert not queues["over"].paused
    queues["held"].resume()


def test_a_pause_holds_before_and_beside_a_worker_and_ends_by_word_and_by_time(fleet: Fleet) -> None:
    """However long the lease is: the next renewal would come after the test."""
    fleet.settings["lease"] = 300
    queue = fleet.app.queues["default"]
    queue.pause()
    job = fleet.enqueue("process.add", 1, 1)
    fleet.worker(queues="default,second")
    assert fleet.enqueue("process.add", 2, 2, queue="second").result(timeout=60) == 4
    assert job.state is State.READY
    queue.resume()
    assert job.result(timeout=60) == 2
    queue.pause(3600)
    job = fleet.enqueue("process.add", 1, 1)
    end = fleet.app.overview().now + 1_000_000
    assert not queue.pause(1)
    assert job.result(timeout=60) == 2
    assert job.refresh().started_us >= end
    assert not queue.paused


def nobody_wakes(fleet: Fleet, client: redis.Redis, queue: str = "default") -> list[Job[int]]:
    """Line up jobs until one of them wakes no worker: the token of a paused queue stays where it is.

    It may also lie there because whoever was woken in vain does not sleep again yet. So it stays if each worker has
    gone on meanwhile, which its renewals tell.
    """
    jobs, token = list[Job[int]](), fleet.app.client.keys.wake(queue)

    def left_alone() -> bool:
        jobs.append(fleet.enqueue("process.add", 1, 1, queue=queue))
        leases: defaultdict[str, set[int]] = defaultdict(set)

        def certain() -> bool:
            workers = fleet.app.overview().workers
            for worker in workers:
                leases[worker.owner].add(worker.lease)
            return not client.exists(token) or all(len(leases[worker.owner]) > 3 for worker in workers)

        fleet.until(certain)
        return bool(client.exists(token))

    fleet.until(left_alone)
    return jobs


def sleeps(client: redis.Redis) -> int:
    return int(client.info("commandstats").get("cmdstat_bzpopmin", {"calls": 0})["calls"])


def test_jobs_of_a_paused_queue_wake_no_worker_and_each_worker_learns_of_the_end(
    fleet: Fleet, client: redis.Redis
) -> None:
    """Each woke a worker, which claimed in vain and slept again."""
    fleet.settings["lease"] = BRIEF
    for _ in range(2):
        fleet.worker(queues="default,second")
    # Before it sleeps no worker takes a token either.
    fleet.until(lambda: client.info("clients")["blocked_clients"] == 2)
    for queue, other in (("default", "second"), ("second", "default")):
        fleet.app.queues[queue].pause()
        jobs = nobody_wakes(fleet, client, queue)
        before = sleeps(client)
        jobs += fleet.enqueue_many("process.add", [(1, 1)] * 50, queue=queue)
        jobs += [fleet.enqueue("process.add", 1, 1, queue=queue) for _ in range(50)]
        assert sleeps(client) == before
        # The other queue is served meanwhile.
        assert fleet.enqueue("process.add", 2, 2, queue=other).result(timeout=60) == 4
        assert {job.state for job in jobs} == {State.READY}
        if queue == "default":
            fleet.app.queues[queue].resume()
        else:
            fleet.app.queues[queue].pause(0.5)
        assert [job.result(timeout=60) for job in jobs] == [2] * len(jobs)
    # What was known of a pause goes with the connection over which its end would have been announced.
    fleet.app.queues["default"].pause()
    jobs = nobody_wakes(fleet, client)
    with client.pipeline(transaction=True) as at_once:
        at_once.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        at_once.execute_command(*resume(fleet.app.client.keys, "default").command())
        at_once.execute()
    assert [job.result(timeout=60) for job in jobs] == [2] * len(jobs)


def test_a_worker_that_is_woken_for_nothing_just_sleeps_again(fleet: Fleet, client: redis.Redis) -> None:
    """It once looked whether a queue is paused, in a thread and by a connection made for that: some starts took 50 ms."""
    fleet.worker()
    assert fleet.enqueue("process.add", 1, 1).result(timeout=60) == 2
    for _ in range(5):
        before = sleeps(client)
        client.zadd(fleet.app.client.keys.wake("default"), {"": 0})
        fleet.until(lambda before=before: sleeps(client) > before and client.info("clients")["blocked_clients"])
    assert fleet.enqueue("process.add", 1, 1).result(timeout=60) == 2
    assert client.info("clients")["tracking_clients"] == 0
