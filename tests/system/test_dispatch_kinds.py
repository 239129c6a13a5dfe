"""Workers with several queues and several kinds of runners: no job waits beside a runner that is free for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from headrace.model.job import State
from tests.system.fleet import Fleet


def lines_up(fleet: Fleet, task: str, count: int, seconds: float = 0.02, **options: object) -> None:
    fleet.enqueue_many(task, [(seconds,)] * count, **options)


@pytest.mark.parametrize("queues", ["default,mail", "mail,default", "mail:3,default:1"])
def test_a_queue_whose_kind_was_full_goes_on_when_a_runner_is_free(fleet: Fleet, queues: str) -> None:
    fleet.worker(kinds="process,async", processes=2, queues=queues)
    lines_up(fleet, "process.nap", 40, queue="mail")
    fleet.drained()
    assert set(fleet.ledger.counts("S").values()) == {1}


@pytest.mark.parametrize("kinds", ["process,async", "process,thread", "process,fork,thread,async"])
def test_what_is_left_of_one_queue_does_not_hold_up_the_other(fleet: Fleet, kinds: str) -> None:
    fleet.worker(kinds=kinds, processes=2, concurrency=50, queues="high,low")
    for queue in ("high", "low"):
        lines_up(fleet, "process.nap", 60, 0.005, queue=queue)
    fleet.drained()
    assert set(fleet.ledger.counts("S").values()) == {1}


def test_three_kinds_and_two_queues_with_weights_end_though_one_is_paused_and_resumed_meanwhile(fleet: Fleet) -> None:
    fleet.worker(kinds="process,thread,async", processes=2, queues="a:5,b:1")
    for queue in ("a", "b"):
        for kind in ("process", "thread", "async"):
            lines_up(fleet, f"{kind}.nap", 20, queue=queue)
    fleet.app.queues["a"].pause()
    first = fleet.enqueue("process.nap", 0.0, queue="b")
    fleet.ended(first)
    fleet.app.queues["a"].resume()
    fleet.app.queues["b"].pause(0.2)
    fleet.drained()
    fleet.check()


@pytest.mark.parametrize("held", ["process", "fork"])
def test_a_job_does_not_wait_behind_one_whose_kind_is_full(fleet: Fleet, tmp_path: Path, held: str) -> None:
    fleet.worker(kinds=f"{held},async", processes=1, forks=1)
    running = fleet.enqueue(f"{held}.gate", str(tmp_path / "go"))
    fleet.started(running)
    waiting = fleet.enqueue_many(f"{held}.add", [(n, n) for n in range(30)])
    for number in range(3):
        assert fleet.enqueue("async.add", number, 1).result(timeout=60) == number + 1
    assert {job.state for job in waiting} == {State.READY}
    (tmp_path / "go").touch()
    assert [job.result(timeout=60) for job in waiting] == [2 * n for n in range(30)]
    fleet.check()


def test_a_job_is_found_behind_more_than_one_claim_looks_at(fleet: Fleet, tmp_path: Path) -> None:
    fleet.worker(kinds="process,async", processes=1)
    running = fleet.enqueue("process.gate", str(tmp_path / "go"))
    fleet.started(running)
    fleet.enqueue_many("process.add", [(n, n) for n in range(1500)])
    early = fleet.enqueue("async.add", 1, 1)
    assert early.result(timeout=60) == 2
    late = fleet.enqueue("async.add", 2, 2)
    assert late.result(timeout=60) == 4
    first = fleet.enqueue("async.add", 3, 3, priority=5)
    assert first.result(timeout=60) == 6
    (tmp_path / "go").touch()
    fleet.drained()


def test_nothing_is_claimed_only_to_be_handed_back_while_a_kind_is_full(
    fleet: Fleet, client: redis.Redis, tmp_path: Path
) -> None:
    fleet.worker(kinds="process,async", processes=1, concurrency=50)
    running = fleet.enqueue("process.gate", str(tmp_path / "go"))
    fleet.started(running)
    waiting = fleet.enqueue_many("process.nap", [(0.01,)] * 100)
    fleet.enqueue("async.add", 1, 1).result(timeout=60)

    def writes() -> int:
        return int(client.info("commandstats")["cmdstat_hset"]["calls"])

    before = writes()
    (tmp_path / "go").touch()
    for job in waiting:
        job.result(timeout=60)
    # A start, an end, and the number of each request; each job that is handed back costs two more.
    assert writes() - before < 10 * len(waiting)


def test_one_that_has_no_room_leaves_what_it_passes_over_to_one_that_has(
    new_fleet: Callable[..., Fleet], url: str, tmp_path: Path
) -> None:
    """The next renewal, which would tell as well, comes after the test."""
    fleet = new_fleet(url, lease=300)
    full = fleet.worker(kinds="process,async", processes=1)
    running = fleet.enqueue("process.gate", str(tmp_path / "go"))
    fleet.started(running)
    # It knows that process jobs wait, since one does, and passes over them.
    behind = fleet.enqueue("process.gate", str(tmp_path / "go"))
    assert fleet.enqueue("async.add", 1, 1).result(timeout=60) == 2
    other = fleet.worker(kinds="process", processes=1)
    fleet.started(behind)
    assert {line.pid for line in fleet.ledger.starts(behind.id)} <= set(other.runners())
    third = fleet.worker(kinds="process", processes=2)
    for _ in range(4):
        job = fleet.enqueue("process.pid")
        assert job.result(timeout=60) in third.runners()
    (tmp_path / "go").touch()
    assert running.result(timeout=60) == behind.result(timeout=60) == 1
    assert full.alive


def test_a_worker_that_grows_while_its_kind_is_full_takes_what_waits(fleet: Fleet, tmp_path: Path) -> None:
    worker = fleet.worker(kinds="process,async", processes=1)
    jobs = [fleet.enqueue("process.gate", str(tmp_path / "go"), queue="default") for _ in range(4)]
    fleet.started(jobs[0])
    assert fleet.enqueue("async.add", 1, 1).result(timeout=60) == 2
    fleet.app.workers.scale(worker.place, 4, "process")
    for job in jobs:
        fleet.started(job)
    (tmp_path / "go").touch()
    fleet.drained()


def test_a_burst_of_several_kinds_leaves_nothing_behind(fleet: Fleet) -> None:
    for kind in ("process", "thread", "async"):
        for queue in ("a", "b"):
            lines_up(fleet, f"{kind}.nap", 25, 0.005, queue=queue)
    worker = fleet.worker(kinds="process,thread,async", processes=1, queues="a,b", burst=True, ready=False)
    assert worker.wait() == 0
    assert len(fleet.ledger.counts("E")) == 150


def test_a_broadcast_reaches_a_worker_that_sleeps_for_one_kind_only(fleet: Fleet, tmp_path: Path) -> None:
    fleet.worker(kinds="process,async", processes=1)
    running = fleet.enqueue("process.gate", str(tmp_path / "go"))
    fleet.started(running)
    fleet.enqueue_many("process.add", [(n, n) for n in range(5)])
    assert fleet.enqueue("async.add", 1, 1).result(timeout=60) == 2
    (job,) = fleet.app.by_name("async.add").broadcast(2, 2)
    assert job.result(timeout=60) == 4
    (tmp_path / "go").touch()
    fleet.drained()


def test_ordered_keys_of_two_kinds_keep_their_order_and_all_run(fleet: Fleet) -> None:
    fleet.worker(kinds="process,async", processes=1, queues="a,b")
    ids: dict[str, list[str]] = {}
    for _ in range(10):
        for kind in ("process", "async"):
            for queue in ("a", "b"):
                job = fleet.enqueue(f"{kind}.nap", 0.005, queue=queue, key=f"{kind}-{queue}", ordered=True)
                ids.setdefault(f"{kind}-{queue}", []).append(job.id)
    # A worker that loses its lease on a slow machine has running jobs that belong to nobody for a moment.
    fleet.until(lambda: fleet.app.overview().states["succeeded"] == 40)
    started = [line.id for line in fleet.ledger.starts()]
    for mine in ids.values():
        assert [id for id in started if id in set(mine)] == mine
    fleet.check()


def test_an_idle_worker_of_two_kinds_sleeps(fleet: Fleet, client: redis.Redis, tmp_path: Path) -> None:
    """Also while a kind is full and jobs of it wait: what cannot be taken wakes nobody again and again."""
    fleet.worker(kinds="process,async", processes=1)
    running = fleet.enqueue("process.gate", str(tmp_path / "go"))
    fleet.started(running)
    fleet.enqueue_many("process.add", [(n, n) for n in range(1000)])
    assert fleet.enqueue("async.add", 1, 1).result(timeout=60) == 2

    def claims() -> int:
        return int(client.info("commandstats").get("cmdstat_bzpopmin", {"calls": 0})["calls"])

    seen = [claims()]

    def quiet() -> bool:
        """Whether two looks a while apart saw the same."""
        seen.append(claims())
        return len(seen) > 20 and len(set(seen[-20:])) == 1

    fleet.until(quiet)
    (tmp_path / "go").touch()
    fleet.drained()
