"""The happy path: every kind of runner does every thing that a job may do, and nothing is started twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from headrace.errors import JobFailed
from headrace.model.job import State
from headrace.protocol.operations import resume
from headrace.tasks.job_handle import Job
from tests.processes import below
from tests.servers import Server
from tests.system.fleet import Fleet

KINDS = ("process", "fork", "thread", "async")
ALL = ",".join(KINDS)
BRIEF = 3.0
"""A lease that is renewed often, for tests that wait for that and run nothing which its end would harm."""


def test_one_worker_serves_all_kinds_and_starts_each_job_once(fleet: Fleet) -> None:
    fleet.worker(kinds=ALL)
    jobs = [fleet.enqueue(f"{kind}.add", n, n) for n in range(20) for kind in KINDS]
    assert [job.result(timeout=60) for job in jobs] == [2 * n for n in range(20) for _ in KINDS]
    assert fleet.ledger.counts("S") == fleet.ledger.counts("E") == {job.id: 1 for job in jobs}
    assert {line.attempt for line in fleet.ledger.starts()} == {1}


def test_errors_are_retried_until_one_start_succeeds(fleet: Fleet) -> None:
    fleet.worker(kinds=ALL)
    for kind in KINDS:
        lucky = fleet.enqueue(f"{kind}.fail", 2, retries=3)
        luckless = fleet.enqueue(f"{kind}.fail", 5, retries=1)
        assert lucky.result(timeout=60) == 3
        with pytest.raises(JobFailed, match="ValueError: not yet"):
            luckless.result(timeout=60)
        assert [line.attempt for line in fleet.ledger.starts(lucky.id)] == [1, 2, 3]
        assert len(fleet.ledger.starts(luckless.id)) == 2
        assert luckless.refresh().failures == 2


def test_a_snooze_runs_the_job_again_and_uses_no_retry(fleet: Fleet) -> None:
    fleet.worker(kinds=ALL)
    for kind in KINDS:
        job = fleet.enqueue(f"{kind}.snooze", 2, retries=0)
        assert job.result(timeout=60) == 3
        assert (job.refresh().snoozes, job.refresh().failures) == (2, 0)


def test_progress_and_log_are_visible_while_the_job_runs(fleet: Fleet, tmp_path: Path) -> None:
    fleet.worker(kinds=ALL)
    for kind in KINDS:
        go = tmp_path / kind
        job = fleet.enqueue(f"{kind}.say", str(go))
        fleet.until(lambda job=job: job.refresh().progress == 0.5 and job.logs())
        assert job.state is State.RUNNING
        assert job.refresh().progress_text == "half"
        assert job.logs() == ["a line", "another"]
        go.touch()
        assert job.result(timeout=60) == "said"
        assert job.refresh().progress == 1.0


def test_a_delayed_job_waits_on_the_server(fleet: Fleet) -> None:
    fleet.worker()
    job = fleet.enqueue("process.add", 1, 1, delay=2)
    assert job.state is State.SCHEDULED
    assert job.result(timeout=60) == 2
    record = job.refresh()
    assert record.started_us - record.created_us >= 2_000_000


def test_a_retry_and_a_delay_wait_for_nothing_else(server: Server, new_fleet: Callable[..., Fleet]) -> None:
    """The next renewal of the lease, which tells what is due as well, comes after the test."""
    fleet = new_fleet(server.url, lease=300)
    fleet.worker()
    job = fleet.enqueue("process.fail", 2, retries=2, delay=0.1)
    assert job.result(timeout=60) == 3


def test_an_expired_job_never_starts(fleet: Fleet) -> None:
    job = fleet.enqueue("process.add", 1, 1, expires=0.01)
    late = fleet.enqueue("process.add", 1, 1)
    fleet.until(lambda: late.refresh().created_us + 20_000 < fleet.app.overview().now)
    fleet.worker()
    assert late.result(timeout=60) == 2
    assert fleet.ended(job).state is State.CANCELLED
    assert not fleet.ledger.starts(job.id)


def test_a_higher_priority_starts_sooner(fleet: Fleet) -> None:
    jobs = [fleet.enqueue("process.add", priority=priority) for priority in (0, -1, 5, 0, 1)]
    fleet.worker()
    for job in jobs:
        job.result(timeout=60)
    order = [line.id for line in fleet.ledger.starts()]
    assert order == [jobs[n].id for n in (2, 4, 0, 3, 1)]


def test_strict_order_serves_the_first_queue_first(fleet: Fleet) -> None:
    low = fleet.enqueue_many("process.add", [()] * 30, queue="low")
    high = fleet.enqueue_many("process.add", [()] * 30, queue="high")
    fleet.worker(queues="high,low")
    fleet.drained()
    order = [line.id for line in fleet.ledger.starts()]
    assert set(order[:30]) == {job.id for job in high}
    assert set(order[30:]) == {job.id for job in low}


def test_weights_starve_no_queue(fleet: Fleet) -> None:
    low = {job.id for job in fleet.enqueue_many("process.add", [()] * 100, queue="low")}
    fleet.enqueue_many("process.add", [()] * 1000, queue="high")
    fleet.worker(queues="high:3,low:1", settings={"prefetch_seconds": 0})
    fleet.drained()
    order = [line.id for line in fleet.ledger.starts()]
    # One claim in four asks the light queue first; that none of 500 did has no chance worth a name.
    assert low & set(order[:500])
    assert low - set(order[:100])


def test_a_queue_that_nobody_serves_waits(fleet: Fleet) -> None:
    other = fleet.enqueue("process.add", queue="other")
    fleet.worker(queues="default")
    assert fleet.enqueue("process.add", 1, 2).result(timeout=60) == 3
    assert other.state is State.READY
    fleet.worker(queues="other")
    assert other.result(timeout=60) == 0


def test_burst_leaves_when_the_queues_are_empty(fleet: Fleet) -> None:
    jobs = fleet.enqueue_many("process.add", [(n, n) for n in range(200)])
    worker = fleet.worker(ready=False, processes=2, burst=True)
    assert worker.wait() == 0
    assert all(job.state is State.SUCCEEDED for job in jobs)
    assert set(fleet.ledger.counts().values()) == {1}
    assert not fleet.app.overview().workers


def test_burst_leaves_at_once_when_there_is_nothing_to_do(fleet: Fleet) -> None:
    assert fleet.worker(ready=False, burst=True).wait() == 0


def test_a_worker_leaves_after_its_last_job(fleet: Fleet) -> None:
    fleet.enqueue_many("process.add", [()] * 50)
    assert fleet.worker(ready=False, processes=2, max_jobs=7).wait() == 0
    assert len(fleet.ledger.starts()) == 7
    assert fleet.app.jobs.count("ready") == 43


def test_a_worker_leaves_when_there_was_nothing_to_run_for_its_time(fleet: Fleet) -> None:
    """A job that takes longer than that is no idleness."""
    job = fleet.enqueue("process.nap", 1.5)
    worker = fleet.worker(ready=False, max_idle=0.5)
    assert worker.wait() == 0
    assert (job.state, job.refresh().attempt, job.refresh().interruptions) == (State.SUCCEEDED, 1, 0)
    assert "there was nothing to run for 0.5 s" in worker.log()
    assert not fleet.app.overview().workers


def test_burst_leaves_what_is_paused_and_takes_what_is_due(fleet: Fleet) -> None:
    fleet.app.queues["held"].pause()
    held = fleet.enqueue("process.add", 1, 1, queue="held")
    due = fleet.enqueue("process.add", 2, 2, delay=0.001)
    now = fleet.app.overview().now
    fleet.until(lambda: fleet.app.overview().now > now + 10_000)
    assert fleet.worker(ready=False, burst=True, queues="held,default").wait() == 0
    assert (held.state, due.state) == (State.READY, State.SUCCEEDED)
    fleet.app.queues["held"].resume()


def test_burst_takes_what_was_paused_until_before_it_came(fleet: Fleet) -> None:
    fleet.app.queues["held"].pause(0.001)
    held = fleet.enqueue("process.add", 1, 1, queue="held")
    (queue,) = fleet.app.overview().queues
    fleet.until(lambda: fleet.app.overview().now > queue.until)
    assert fleet.app.queues["held"].paused, "somebody has to resume it"
    assert fleet.worker(ready=False, burst=True, queues="held").wait() == 0
    assert held.state is State.SUCCEEDED
    assert not fleet.app.queues["held"].paused


def test_a_runner_is_replaced_after_its_number_of_jobs(fleet: Fleet) -> None:
    jobs = fleet.enqueue_many("process.pid", [()] * 40)
    fleet.worker(recycle_jobs=10)
    pids = [job.result(timeout=60) for job in jobs]
    assert len(set(pids)) == 4
    assert set(fleet.ledger.counts().values()) == {1}


def test_a_runner_that_grew_is_replaced(fleet: Fleet) -> None:
    fleet.worker(recycle_memory=120 << 20)
    before = fleet.enqueue("process.pid").result(timeout=60)
    assert fleet.enqueue("process.pid").result(timeout=60) == before
    fleet.enqueue("process.grow", 150).result(timeout=60)
    assert fleet.enqueue("process.pid").result(timeout=60) != before


def test_the_process_of_a_running_fork_is_told(fleet: Fleet, tmp_path: Path) -> None:
    # It is told with a renewal.
    fleet.settings["lease"] = 6.0
    worker = fleet.worker(kinds="fork", forks=1)
    fleet.enqueue("fork.add", 1, 1).result(timeout=60)
    job = fleet.enqueue("fork.gate", str(tmp_path / "go"))
    fleet.started(job)
    (one,) = fleet.until(lambda: [one for one in fleet.app.workers.get(worker.place).runners if one.job == job.id])
    (runner,) = worker.runners()
    (pid,) = (process.pid for process in below(runner))
    assert (one.pid, one.done, one.replaced) == (pid, 1, 0)
    (tmp_path / "go").touch()
    job.result(timeout=60)


def test_each_job_of_the_fork_kind_has_a_process_of_its_own(fleet: Fleet) -> None:
    fleet.worker(kinds="fork", forks=2)
    jobs = fleet.enqueue_many("fork.pid", [()] * 12)
    assert len({job.result(timeout=60) for job in jobs}) == 12


def test_an_unknown_task_is_parked_until_a_worker_knows_it(fleet: Fleet) -> None:
    fleet.settings["lease"] = BRIEF
    fleet.worker()
    job = fleet.enqueue("fork.add", 4, 4)
    assert fleet.until(lambda: job.state is State.PARKED)
    assert fleet.app.overview().parked == {"fork.add": 1}
    fleet.worker(kinds="fork")
    assert job.result(timeout=60) == 8
    assert job.refresh().crashes == job.refresh().failures == 0


def test_a_paused_queue_is_left_alone_until_it_is_resumed(fleet: Fleet) -> None:
    fleet.worker()
    fleet.app.queues["default"].pause()
    job = fleet.enqueue("process.add", 1, 1)
    other = fleet.enqueue("fork.add", queue="default")
    fleet.app.queues["default"].resume()
    assert job.result(timeout=60) == 2
    fleet.until(lambda: other.state is State.PARKED)


def test_a_worker_that_comes_to_a_paused_queue_waits_for_its_resumption(fleet: Fleet) -> None:
    fleet.app.queues["default"].pause()
    job = fleet.enqueue("process.add", 1, 1)
    fleet.worker(queues="default,second")
    assert fleet.enqueue("process.add", 2, 2, queue="second").result(timeout=60) == 4
    assert job.state is State.READY
    fleet.app.queues["default"].resume()
    assert job.result(timeout=60) == 2


def test_a_pause_ends_by_itself_however_long_the_lease_is(fleet: Fleet) -> None:
    """The next renewal would come after the test."""
    fleet.settings["lease"] = 300
    fleet.worker()
    queue = fleet.app.queues["default"]
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


def test_jobs_that_come_to_a_paused_queue_wake_nobody(fleet: Fleet, client: redis.Redis) -> None:
    """Each woke a worker, which claimed in vain and slept again."""
    fleet.settings["lease"] = BRIEF
    fleet.worker()
    # Before it sleeps nobody takes a token either.
    fleet.until(lambda: client.info("clients")["blocked_clients"])
    fleet.app.queues["default"].pause()
    jobs = nobody_wakes(fleet, client)
    before = sleeps(client)
    jobs += fleet.enqueue_many("process.add", [(1, 1)] * 50)
    jobs += [fleet.enqueue("process.add", 1, 1) for _ in range(50)]
    assert sleeps(client) == before
    assert {job.state for job in jobs} == {State.READY}
    fleet.app.queues["default"].resume()
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


def test_each_worker_feels_a_pause_and_its_end(fleet: Fleet, client: redis.Redis) -> None:
    fleet.settings["lease"] = BRIEF
    for _ in range(2):
        fleet.worker(queues="default,second")
    for queue in ("default", "second"):
        fleet.app.queues[queue].pause()
        jobs = nobody_wakes(fleet, client, queue)
        # The other queue is served meanwhile.
        other = "second" if queue == "default" else "default"
        assert fleet.enqueue("process.add", 2, 2, queue=other).result(timeout=60) == 4
        assert {job.state for job in jobs} == {State.READY}
        fleet.app.queues[queue].resume()
        assert [job.result(timeout=60) for job in jobs] == [2] * len(jobs)


def test_a_worker_that_sleeps_on_other_queues_feels_that_a_pause_ends_by_itself(
    fleet: Fleet, client: redis.Redis
) -> None:
    fleet.settings["lease"] = BRIEF
    fleet.worker(queues="default,second")
    fleet.app.queues["default"].pause(3600)
    jobs = nobody_wakes(fleet, client)
    fleet.app.queues["default"].pause(0.5)
    assert [job.result(timeout=60) for job in jobs] == [2] * len(jobs)


def test_an_end_of_a_pause_that_nobody_could_announce_is_felt(fleet: Fleet, client: redis.Redis) -> None:
    """What was known of the pause goes with the connection over which its end would have been announced."""
    fleet.settings["lease"] = BRIEF
    fleet.worker()
    fleet.app.queues["default"].pause()
    jobs = nobody_wakes(fleet, client)
    fleet.app.queues["second"].resume()  # so that the server knows the script
    with client.pipeline(transaction=True) as at_once:
        at_once.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        at_once.execute_command(*resume(fleet.app.client.keys, "default").command())
        at_once.execute()
    assert [job.result(timeout=60) for job in jobs] == [2] * len(jobs)
