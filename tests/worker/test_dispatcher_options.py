"""What a worker may be asked to be, and which queue it looks at first."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from headrace.errors import OptionsError
from headrace.worker.worker_options import QueueOrder, WorkerOptions, parse_queues, usable_cores


def test_queues_are_in_strict_order_unless_they_have_weights() -> None:
    assert parse_queues("high, low") == QueueOrder(("high", "low"))
    assert parse_queues("high:3,low:1") == QueueOrder(("high", "low"), (3.0, 1.0))
    assert parse_queues("a:b:2,c:0.5") == QueueOrder(("a:b", "c"), (2.0, 0.5))
    assert QueueOrder(("high", "low")).draw_order([]) == ("high", "low")


def test_weights_are_chances_of_coming_first() -> None:
    order, dice = parse_queues("high:3,low:1"), random.Random(1)
    first = Counter(order.draw_order([dice.random(), dice.random()])[0] for _ in range(4000))
    assert 0.7 < first["high"] / 4000 < 0.8


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "at least one queue"),
        (" , ", "at least one queue"),
        ("a,a", "named twice"),
        ("a:1,b", "one to each"),
        ("a:0", "more than 0"),
        ("a:-1,b:2", "more than 0"),
        ("a:\N{SUPERSCRIPT TWO}", "cannot be used"),
        ("a b", "cannot be used"),
        ("slow=3,b", "weight behind a colon: slow:3$"),
        ("-x", "cannot be used"),
    ],
)
def test_queues_that_cannot_be_served_are_refused(text: str, says: str) -> None:
    with pytest.raises(OptionsError, match=says):
        parse_queues(text)


def test_a_worker_that_cannot_be_is_refused() -> None:
    for name in (
        "processes", "forks", "threads", "concurrency", "max_jobs", "max_idle", "recycle_jobs", "recycle_memory",
    ):  # fmt: skip
        with pytest.raises(OptionsError, match=name.replace("_", " ")):
            WorkerOptions(**{name: -1})
    with pytest.raises(OptionsError, match="start more workers"):
        WorkerOptions(processes=2000)


def test_a_worker_is_resized_within_its_limits() -> None:
    options = WorkerOptions(processes=3, forks=2, threads=7, concurrency=9)
    assert [options.jobs_at_once(kind) for kind in ("process", "fork", "thread", "async")] == [3, 2, 7, 9]
    assert options.resized("thread", 20).threads == 20
    with pytest.raises(OptionsError, match="keeps one at least: stop the worker instead"):
        options.resized("process", 0)
    with pytest.raises(OptionsError, match="start more workers"):
        options.resized("fork", 1025)


def test_threads_and_coroutines_share_one_runner() -> None:
    options = WorkerOptions(processes=3, forks=2, threads=7, concurrency=9)
    assert [options.runners(kind) for kind in ("process", "fork", "thread", "async")] == [3, 2, 1, 1]
    assert [options.slots(kind) for kind in ("process", "fork", "thread", "async")] == [1, 1, 7, 9]
    assert WorkerOptions(threads=0).runners("thread") == 0


def test_one_process_runner_for_each_core_that_the_process_may_run_on() -> None:
    code = "from headrace.worker.worker_options import WorkerOptions; print(WorkerOptions().processes)"
    core = min(os.sched_getaffinity(0))
    done = subprocess.run(
        ["taskset", "-c", str(core), sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n"


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 2),  # a container with version 2
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/", {"cpu.max": "max 100000"}, 8),
        ("0::/kubepods/pod1/c1", {"kubepods/pod1/cpu.max": "300000 100000", "kubepods/cpu.max": "max 100000"}, 3),
        ("0::/docker/c1", {"cpu.max": "200000 100000"}, 2),  # the path is the host's, the root the container's
        ("3:cpuset:/\n2:cpu,cpuacct:/a", {
            "cpu,cpuacct/a/cpu.cfs_quota_us": "400000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000",
            "cpuset/cpu.cfs_quota_us": "1", "cpuset/cpu.cfs_period_us": "1",
        }, 4),
        ("2:cpu:/\n0::/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ("0::/", {"cpu.max": "broken"}, 8),
        ("", {}, 8),
    ],
)  # fmt: skip
def test_one_process_runner_for_each_core_that_the_control_group_has_time_for(
    groups: str, files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def affinity(_process: int) -> set[int]:
        return set(range(8))

    monkeypatch.setattr(os, "sched_getaffinity", affinity)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "process_cpu_count", lambda: 8, raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    (tmp_path / "groups").write_text(f"{groups}\n")
    assert usable_cores(str(tmp_path / "groups"), str(tmp_path)) == cores
