"""Workers with several queues and several kinds of runners: no job waits beside a runner that is free for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import redis

from tests.system.fleet import Fleet


def lines_up(fleet: Fleet, task: str, count: int, seconds: float = 0.02, **options: object) -> None:
    fleet.enqueue_many(task, [(seconds,)] * count, **options)


def test_a_burst_of_all_kinds_leaves_nothing_behind_in_any_queue(fleet: Fleet) -> None:
    for kind in ("process", "fork", "thread", "async"):
        for queue in ("high", "low"):
            lines_up(fleet, f"{kind}.nap", 25, 0.005, queue=queue)
    kinds = "process,fork,thread,async"
    worker = fleet.worker(kinds=kinds, processes=2, concurrency=50, queues="high:3,low:1", burst=True, ready=False)
    assert worker.wait() == 0
    assert set(fleet.ledger.counts("S").values()) == {1}
    assert len(fleet.ledger.counts("E")) == 200
    fleet.check()


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
