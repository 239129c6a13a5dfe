"""``headrace demo``: the standard library of this machine, measured by real jobs on a real worker.

``tasks`` is the application, ``stage`` the server and the worker, ``watch`` follows the jobs, ``screen`` and ``report``
show them. This module owns their order. Nothing here is hard-coded: every figure was measured in this run.
"""

from __future__ import annotations

import platform
import sys
import time
from typing import TYPE_CHECKING

from headrace.errors import OptionsError

if TYPE_CHECKING:
    from headrace.demo.report import Cost
    from headrace.demo.screen import Screen
    from headrace.demo.stage import Stage, Worker
    from headrace.demo.tasks import Measured
    from headrace.demo.watch import Progress

LOOKS = 0.1
IDLE_SAMPLES = 100
IDLE_PAUSE = 0.01


def main(*, processes: int = 2, limit: int | None = None, json: bool = False) -> int:
    """Run the demo; needs no server and leaves nothing behind, also when it is interrupted.

    Args:
        processes: runners of the worker.
        limit: measure this many files, spread over the library; None: all.
        json: print one JSON document instead of progress and tables.

    Returns:
        0 when every job succeeded, else 1.

    Raises:
        OptionsError: ``processes`` or ``limit`` is not positive.
        ServerError: no private server could be started.
        DemoError: the worker ended before its jobs did.
    """
    for name, value in (("processes", processes), ("limit", limit)):
        if value is not None and value < 1:
            raise OptionsError(f"{name} must be 1 or more, not {value}")
    from headrace.demo.screen import Screen
    from headrace.demo.stage import staged

    screen = Screen(quiet=json)
    with staged() as stage:
        # Imported only now: the application reads the settings that the stage has just made.
        from headrace.demo import report

        found, cost, survived = _run(screen, stage, processes, limit)
    if json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(report.facts(found, cost, survived, stage.server)).decode() + "\n")
    else:
        screen.tables(report.findings(found), report.costs(cost))
    return 1 if cost.lost else 0


def _run(screen: Screen, stage: Stage, processes: int, limit: int | None) -> tuple[list[Measured], Cost, list[str]]:
    """The jobs' findings, what they cost, and what they survived."""
    from headrace.demo import report, tasks

    with tasks.app, stage.reads() as reads:
        files = _spread(tasks.sources(), limit)
        python = f"Python {platform.python_version()}"
        screen.say(f"{len(files):,} source files of {python}'s library, its tests left out: one job each")
        stored_in = _enqueue(files)
        own = tasks.app.store.round_trips
        before = reads()
        worker = stage.worker(processes)
        screen.say(f"{stage.server} in a temporary directory; worker {worker.pid} with {_runners(processes)}")
        progress, survived = _follow(screen, worker, len(files))
        # Each of our own requests was one read of the server's, this question included.
        trips = reads() - before - 1 - (tasks.app.store.round_trips - own)
        found = list(progress.found.values())
        cost = report.bill(
            list(progress.records.values()), found, _idle(), jobs=len(files), runners=processes, stored_in=stored_in,
            trips=trips,
        )  # fmt: skip
        return found, cost, survived


def _spread(files: list[str], limit: int | None) -> list[str]:
    if limit is None or limit >= len(files):
        return files
    return [files[number * len(files) // limit] for number in range(limit)]


def _enqueue(files: list[str]) -> float:
    """Store a job per file, two of which will go wrong once; the seconds that took."""
    from headrace.demo import tasks

    faults: dict[int, tasks.Fault] = {len(files) // 3: "killed", len(files) * 2 // 3: "failed"}
    began = time.perf_counter()
    tasks.app.enqueue_many(tasks.measure.job(path, faults.get(number, "")) for number, path in enumerate(files))
    return time.perf_counter() - began


def _follow(screen: Screen, worker: Worker, total: int) -> tuple[Progress, list[str]]:
    """Watch until every job has ended; what survived, a sentence each."""
    from headrace.demo.stage import DemoError
    from headrace.demo.watch import Progress

    progress = Progress()
    survived: list[str] = []
    with screen.bar(total) as bar:
        while True:
            news = progress.look()
            survived += news
            bar.show(len(progress.found), progress.running, news)
            if not progress.left:
                break
            worker.watch(LOOKS)
    if not progress.found:
        raise DemoError(f"not one of the {total} jobs succeeded; the worker's last words:\n{worker.tail()}")
    return progress, survived


def _idle() -> list[float]:
    """From the call of ``enqueue`` to the first line of the job, again and again, with nothing else to do; seconds."""
    from headrace.demo import tasks

    samples: list[float] = []
    for _ in range(IDLE_SAMPLES):
        samples.append(tasks.delay.enqueue(time.monotonic()).result(timeout=30))
        time.sleep(IDLE_PAUSE)
    return samples


def _runners(processes: int) -> str:
    return f"{processes} process runner{'s' * (processes != 1)}"
