"""Workers with different code on the same queues: jobs go to those that know their tasks, at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.model.job import State
from tests.system.fleet import Fleet, NewFleet


@pytest.fixture
def lease() -> float:
    """The next renewal, which would tell as well, comes after the test."""
    return 600.0


@pytest.fixture
def mixed(fleet: Fleet) -> Fleet:
    """Two workers with old code, and one that knows more."""
    for _ in range(2):
        fleet.worker()
    fleet.worker(kinds="async,process")
    return fleet


def test_a_task_that_only_the_new_worker_knows_runs_at_once(mixed: Fleet) -> None:
    for number in range(5):
        assert mixed.enqueue("async.add", number, 1).result(timeout=60) == number + 1
    jobs = mixed.enqueue_many("async.add", [(n, n) for n in range(40)])
    plain = mixed.enqueue_many("process.add", [(n, n) for n in range(40)])
    assert [job.result(timeout=60) for job in jobs] == [2 * n for n in range(40)]
    assert [job.result(timeout=60) for job in plain] == [2 * n for n in range(40)]
    assert set(mixed.ledger.counts("S").values()) == {1}
    assert mixed.app.overview().parked == {}
    mixed.check()


def test_while_the_new_worker_is_full_its_jobs_wait_and_nobody_is_busy_with_them(
    fleet: Fleet, client: object, tmp_path: Path
) -> None:
    fleet.worker()
    fleet.worker(kinds="fork")
    first = fleet.enqueue("fork.gate", str(tmp_path / "go"))
    fleet.started(first)
    waiting = [fleet.enqueue("fork.gate", str(tmp_path / "go")) for _ in range(20)]
    fleet.until(lambda: all(job.state is State.PARKED for job in waiting))

    def commands() -> int:
        return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])  # type: ignore[attr-defined]

    seen = [commands()]

    def quiet() -> bool:
        """Whether many looks a while apart saw the same."""
        seen.append(commands())
        return len(seen) > 20 and len(set(seen[-20:])) == 1

    fleet.until(quiet)
    (tmp_path / "go").touch()
    assert [job.result(timeout=60) for job in waiting] == [1] * 20
    fleet.check()


def test_a_job_whose_queue_is_served_by_old_code_only_stays_parked_and_says_so(new_fleet: NewFleet, url: str) -> None:
    fleet = new_fleet(url, lease=3)
    fleet.worker(queues="mail")
    knower = fleet.worker(kinds="async")
    job = fleet.enqueue("async.add", 1, 1, queue="mail")
    fleet.until(lambda: job.state is State.PARKED)
    with pytest.raises(TimeoutError, match="that serves queue mail knows the task"):
        job.result(timeout=1)
    assert job.state is State.PARKED
    assert fleet.enqueue("async.add", 2, 2).result(timeout=60) == 4
    assert knower.alive
    fleet.worker(kinds="async", queues="mail,default")
    assert job.result(timeout=60) == 2


def test_a_burst_of_new_code_runs_what_old_code_parked(fleet: Fleet) -> None:
    old = fleet.worker()
    jobs = fleet.enqueue_many("thread.add", [(n, n) for n in range(60)])
    fleet.until(lambda: fleet.app.overview().parked == {"thread.add": 60})
    # What it claimed while the other one leaves it would park behind it.
    old.terminate()
    assert old.wait() == 0
    burst = fleet.worker(kinds="thread", burst=True, ready=False)
    assert burst.wait() == 0
    assert {job.state for job in jobs} == {State.SUCCEEDED}
