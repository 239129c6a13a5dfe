"""Strategies in real workers: who gets a job, in which order jobs of one key start, and what a stop makes of those that wait."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from itertools import chain
from pathlib import Path

import pytest

from headrace.errors import JobFailed, NotFound, StateError
from headrace.model.job import State
from tests.servers import Server
from tests.system.fleet import PATIENCE, Fleet, NewFleet, Worker


def in_order(fleet: Fleet, ids: dict[str, list[str]], *, apart: bool = True) -> None:
    """Jobs of each key started in their order, and, if ``apart``, none before the one before it had ended."""
    key_of = {id: key for key, mine in ids.items() for id in mine}
    seen: defaultdict[str, list[str]] = defaultdict(list)
    running: defaultdict[str, set[str]] = defaultdict(set)
    for line in fleet.ledger.lines():
        key = key_of.get(line.id)
        if key is None:
            continue
        if line.mark == "S":
            assert not apart or not running[key], f"{line.id} began beside {running[key]}"
            running[key].add(line.id)
            seen[key].append(line.id)
        elif line.mark == "E":
            running[key].discard(line.id)
    assert dict(seen) == ids


def load(fleet: Fleet, task: str, keys: int, each: int, *args: object, **options: object) -> dict[str, list[str]]:
    """Jobs of several keys, one of each in turn; their ids by key, in order."""
    ids: dict[str, list[str]] = {f"customer-{n}": [] for n in range(keys)}
    for _ in range(each):
        for key, mine in ids.items():
            mine.append(fleet.enqueue(task, *args, key=key, **options).id)
    return ids


def test_jobs_of_one_key_run_in_order_in_a_worker_of_every_kind(fleet: Fleet) -> None:
    """Every twentieth tiny job is slow, so that jobs that were sent ahead behind it come back."""
    kinds = ("process", "fork", "thread", "async")
    ids: dict[str, list[str]] = {f"{kind}-{n}": [] for kind in kinds for n in range(3)}
    tiny: dict[str, list[str]] = {f"tiny-{n}": [] for n in range(2)}
    for number in range(80):
        for key, mine in ids.items() if number < 6 else ():
            mine.append(fleet.enqueue(f"{key.partition('-')[0]}.nap", 0.002, key=key).id)
        for key, mine in tiny.items():
            task, args = ("process.nap", (0.05,)) if number % 20 == 19 else ("process.add", (1, 1))
            mine.append(fleet.enqueue(task, *args, key=key).id)
    fleet.worker(kinds=",".join(kinds), processes=3, forks=3)
    fleet.drained()
    in_order(fleet, ids | tiny)
    pids = [{line.pid for line in fleet.ledger.starts() if line.id in mine} for key, mine in (ids | tiny).items()
            if key[0] in "pt" and "thread" not in key]  # fmt: skip
    assert all(len(one) == 1 for one in pids)
    assert len(set().union(*pids)) > 1


def test_ordered_jobs_of_one_key_run_one_at_a_time_whichever_worker_runs_them(fleet: Fleet) -> None:
    for _ in range(2):
        fleet.worker(kinds="process,async", processes=2, concurrency=2)
    ids = load(fleet, "process.nap", 4, 8, 0.02, ordered=True)
    for number in range(24):
        job = fleet.enqueue("async.nap", 0.02, key=f"guest-{number % 3}", ordered=True)
        ids.setdefault(f"guest-{number % 3}", []).append(job.id)
    plain = fleet.enqueue_many("process.add", [(n, n) for n in range(50)])
    fleet.drained()
    in_order(fleet, ids)
    assert fleet.ledger.counts("S") == dict.fromkeys([*chain(*ids.values()), *(job.id for job in plain)], 1)
    assert len({line.pid for line in fleet.ledger.starts()}) > 2
    fleet.check()


def test_who_sleeps_is_woken_for_the_next_of_a_key(server: Server, new_fleet: NewFleet, tmp_path: Path) -> None:
    """The one before ended elsewhere, and the next renewal, which would tell as well, comes after the test."""
    fleet = new_fleet(server.url, lease=300)
    go = tmp_path / "go"
    fleet.worker(queues="one")
    fleet.worker(queues="two")
    first = fleet.enqueue("process.gate", str(go), key="k", ordered=True, queue="one")
    fleet.started(first)
    second = fleet.enqueue("process.add", 1, 1, key="k", ordered=True, queue="two")
    assert (second.state, fleet.app.jobs.count("blocked")) == (State.BLOCKED, 1)
    go.touch()
    assert second.result(timeout=PATIENCE) == 2


def test_kills_leave_no_ordered_job_behind_and_none_before_its_turn(fleet: Fleet) -> None:
    ids = load(fleet, "process.nap", 4, 20, 0.03, ordered=True, max_crashes=10)
    fleet.kill_each_role(every=12)
    fleet.drained(60)
    assert fleet.app.jobs.count("blocked") == 0
    ends = [line.id for line in fleet.ledger.ends()]
    for mine in ids.values():
        # A job may have run again after its end was written here; of each the first end counts.
        assert list(dict.fromkeys(id for id in ends if id in mine)) == mine
    fleet.check()


def at_once(fleet: Fleet, worker: Worker, kind: str = "process") -> int:
    """How many jobs of a kind the worker says that it runs at once; 0 while two incarnations have its place."""
    try:
        return fleet.app.workers.get(worker.place).sizes[kind]
    except NotFound:
        return 0


def test_resizing_under_keyed_load_loses_nothing_runs_nothing_twice_and_keeps_the_order(fleet: Fleet) -> None:
    """Every second key is ordered."""
    worker = fleet.worker(processes=4)
    ids: dict[str, list[str]] = {f"customer-{n}": [] for n in range(12)}
    plain: list[str] = []
    for size in (8, 1, 4):
        for _ in range(6):
            for number, (key, mine) in enumerate(ids.items()):
                mine.append(fleet.enqueue("process.nap", 0.01, key=key, ordered=number % 2 == 1).id)
            plain.append(fleet.enqueue("process.add", 1, 1).id)
        fleet.app.workers.scale(worker.place, size)
        fleet.until(lambda size=size: at_once(fleet, worker) == size)
    fleet.drained(60)
    in_order(fleet, ids)
    everything = [*chain(*ids.values()), *plain]
    assert fleet.ledger.counts("S") == fleet.ledger.counts("E") == dict.fromkeys(everything, 1)
    assert {line.attempt for line in fleet.ledger.starts()} == {1}
    fleet.until(lambda: len(worker.runners()) == 4)
    fleet.check()


def test_signals_add_and_remove_a_runner_and_the_size_outlives_the_dispatcher(fleet: Fleet) -> None:
    worker = fleet.worker(processes=1)
    for wanted in (2, 3):
        os.kill(worker.pid, signal.SIGTTIN)
        fleet.until(lambda wanted=wanted: len(worker.runners()) == wanted)
    worker.kill("dispatcher")
    fleet.until(lambda: at_once(fleet, worker) == 3 and len(worker.runners()) == 3)
    for wanted in (2, 1):
        os.kill(worker.pid, signal.SIGTTOU)
        fleet.until(lambda wanted=wanted: len(worker.runners()) == wanted)
    os.kill(worker.pid, signal.SIGTTOU)
    fleet.until(lambda: "keeps one at least" in worker.log())
    assert len(worker.runners()) == 1


def test_threads_and_coroutines_are_resized_without_ending_what_runs(fleet: Fleet, tmp_path: Path) -> None:
    worker = fleet.worker(kinds="thread,async", threads=1, concurrency=1)
    jobs = [fleet.enqueue(f"{kind}.gate", str(tmp_path / "go")) for kind in ("thread", "async") for _ in range(4)]
    fleet.until(lambda: len(fleet.ledger.starts()) == 2)
    for kind in ("thread", "async"):
        fleet.app.workers.scale(worker.place, 4, kind)
    for job in jobs:
        fleet.started(job)
    (tmp_path / "go").touch()
    assert [job.result(timeout=PATIENCE) for job in jobs] == [1] * 8


def test_a_worker_tells_what_its_runners_do(server: Server, new_fleet: NewFleet, tmp_path: Path) -> None:
    fleet = new_fleet(server.url, lease=9.0)
    worker = fleet.worker(processes=2, recycle_jobs=3)
    for _ in range(3):
        fleet.enqueue("process.add", 1, 1, key="k").result(timeout=PATIENCE)
    first = fleet.enqueue("process.gate", str(tmp_path / "go"), key="k")
    fleet.started(first)
    second = fleet.enqueue("process.add", 2, 2, key="k")
    busy = fleet.until(lambda: [one for one in fleet.app.workers.get(worker.place).runners if one.waiting])
    assert [(one.kind, one.job, one.task, one.holds, one.waiting) for one in busy] == [
        ("process", first.id, "process.gate", 1, 1)
    ]
    (one,) = busy
    assert one.pid in worker.runners()
    assert (one.replaced, one.reason, one.done) == (1, "jobs", 0)
    assert 0 < one.since <= fleet.app.overview().now
    assert one.memory > 1 << 20 or not Path("/proc/self/statm").exists()
    os.kill(one.pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    assert second.result(timeout=PATIENCE) == 4
    told = fleet.until(lambda: [one for one in fleet.app.workers.get(worker.place).runners if "SIGKILL" in one.reason])
    assert [one.replaced for one in told] == [2]


def test_a_broadcast_runs_once_on_each_live_worker_and_is_not_retried(fleet: Fleet, tmp_path: Path) -> None:
    assert fleet.app.by_name("process.pid").broadcast() == []
    workers = [fleet.worker(processes=2), fleet.worker(processes=2, queues="other")]
    # One of them is busy, and has others before it in its queue.
    fleet.enqueue_many("process.nap", [(0.05,)] * 20)
    jobs = fleet.app.by_name("process.pid").broadcast()
    pids = {job.result(timeout=PATIENCE) for job in jobs}
    assert len(jobs) == len(pids) == 2
    for worker in workers:
        assert len(pids & set(worker.runners())) == 1
    fleet.drained()
    assert {fleet.ledger.counts("S")[job.id] for job in jobs} == {1}
    again = fleet.app.by_name("process.pid").broadcast()
    assert {job.result(timeout=PATIENCE) for job in again} <= {pid for worker in workers for pid in worker.runners()}
    failing, *_ = fleet.app.by_name("process.fail").broadcast(5)
    with pytest.raises(JobFailed, match="ValueError: not yet"):
        failing.result(timeout=PATIENCE)
    with pytest.raises(StateError, match="broadcast it anew"):
        failing.retry()
    for name, *args in (("process.snooze", 3), ("nobody.knows",)):
        job, *_ = fleet.app.by_name(name).broadcast(*args)
        assert fleet.ended(job).state is State.CANCELLED
    fleet.drained()
    fleet.check()


def test_a_broadcast_waits_for_a_runner_and_ends_with_its_worker(fleet: Fleet, tmp_path: Path) -> None:
    worker = fleet.worker()
    first = fleet.enqueue("process.gate", str(tmp_path / "go"))
    fleet.started(first)
    (job,) = fleet.app.by_name("process.add").broadcast(1, 1)
    worker.terminate()
    # Else the runner may be free before the signal is heard.
    fleet.until(lambda: "stops claiming" in worker.log())
    (tmp_path / "go").touch()
    assert worker.wait() == 0
    assert first.result(timeout=5) == 1
    assert fleet.ended(job).state is State.CANCELLED
    assert fleet.ledger.starts(job.id) == []
    fleet.check()


def test_one_that_has_no_room_leaves_what_it_passes_over_to_one_that_has(
    server: Server, new_fleet: NewFleet, tmp_path: Path
) -> None:
    """The next renewal, which would tell as well, comes after the test."""
    fleet = new_fleet(server.url, lease=300)
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
