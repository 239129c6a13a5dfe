"""``headrace demo``: the standard library of this machine, measured by a real workflow on a real worker.

``demo_tasks`` is the application, ``stage`` the server and the worker, ``watch`` follows the run, ``screen`` shows it.
This module owns their order. Nothing here is hard-coded: every figure was measured in this run.
"""

from __future__ import annotations

import platform
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import OptionsError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headrace.demo.demo_tasks import Package
    from headrace.demo.screen import Screen
    from headrace.demo.stage import Stage, Worker
    from headrace.demo.watch import Cost, StageProgress
    from headrace.model.workflow import NodeRecord
    from headrace.workflows.run import WorkflowRun

LOOKS = 0.1
IDLE_SAMPLES = 100
IDLE_PAUSE = 0.01


class _Ran(msgspec.Struct, frozen=True):
    """What a run gave: its report, what it cost, what it survived, and its nodes."""

    title: str
    packages: Sequence[Package]
    cost: Cost
    survived: Sequence[str]
    nodes: Sequence[NodeRecord]


def main(*, processes: int = 2, limit: int | None = None, picture: Path | None = None, json: bool = False) -> int:
    """Run the demo; needs no server and leaves nothing behind but a picture, also when it is interrupted.

    Args:
        processes: runners of the worker.
        limit: measure this many files, spread over the library; None: all.
        picture: where to draw the run; None: ``headrace-demo.svg`` in the current directory, if that can be written.
        json: print one JSON document instead of progress and tables.

    Returns:
        0 when every job succeeded, else 1.

    Raises:
        OptionsError: ``processes`` or ``limit`` is not positive, or ``picture`` cannot be written.
        PictureError: the ending of ``picture`` does not say which form it is.
        ServerError: no private server could be started.
        DemoError: the workflow failed, or the worker ended before it did.
    """
    for name, value in (("processes", processes), ("limit", limit)):
        if value is not None and value < 1:
            raise OptionsError(f"{name} must be 1 or more, not {value}")
    from headrace.demo import screen as drawing
    from headrace.demo.screen import Screen
    from headrace.demo.stage import staged

    place = drawing.place(picture)
    screen = Screen(quiet=json)
    with staged() as stage:
        # Imported only now: the application reads the settings that the stage has just made.
        from headrace.demo import watch

        ran = _run(screen, stage, processes, limit)
    screen.tables(watch.findings(ran.packages), watch.costs(ran.cost))
    drawn = _draw(screen, place, ran)
    if json:
        document = watch.facts(ran.packages, ran.cost, ran.survived, stage.server, drawn)
        sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
    return 1 if ran.cost.lost else 0


def _run(screen: Screen, stage: Stage, processes: int, limit: int | None) -> _Ran:
    """One workflow from its definition to its bill."""
    from headrace.demo import demo_tasks, watch
    from headrace.demo import screen as drawing

    with demo_tasks.app, stage.reads() as reads:
        graph = demo_tasks.survey.graph(limit)
        screen.say(f"A survey of Python {platform.python_version()}'s own library, as a workflow:\n")
        screen.say(drawing.sketch(graph, screen.width) + "\n")
        began = time.perf_counter()
        run = demo_tasks.survey.create(limit)
        run.start()
        stored_in = time.perf_counter() - began
        own = demo_tasks.app.store.round_trips
        before = reads()
        worker = stage.worker(processes)
        screen.say(f"{stage.server} in a temporary directory; worker {worker.pid} with {_runners(processes)}")
        survived = _follow(screen, worker, watch.StageProgress(run, len(graph.nodes)))
        # Each of our own requests was one read of the server's, this question included.
        trips = reads() - before - 1 - (demo_tasks.app.store.round_trips - own)
        packages = _reported(run, worker)
        nodes = watch.collect(run)
        idle, ticks = _idle(), demo_tasks.each_second.ticks(100)
        cost = watch.bill(
            nodes, packages, idle, ticks, defined=len(graph.nodes), runners=processes, stored_in=stored_in, trips=trips
        )
        return _Ran(f"{run.definition} {run.id}", packages, cost, survived, nodes)


def _follow(screen: Screen, worker: Worker, progress: StageProgress) -> list[str]:
    """Watch until the workflow has ended; what survived, a sentence each."""
    survived: list[str] = []
    with screen.bar() as bar:
        while True:
            known = progress.files
            news = progress.look()
            survived += news
            if progress.files > known:
                screen.say(
                    f"the scan found {progress.files:,} source files, tests left out: the run adds a job for each"
                )
            # Until the run has grown, its total says nothing about how far it is.
            known_total = progress.total if progress.total > progress.defined else 0
            bar.show(progress.done, known_total, progress.running, news)
            if progress.state.final:
                return survived
            worker.watch(LOOKS)


def _reported(run: WorkflowRun, worker: Worker) -> list[Package]:
    from headrace.demo.stage import DemoError

    packages: list[Package] | None = run.outputs("report").get("report")
    if not packages:
        record = run.refresh()
        where = f" at {record.failed_node}" if record.failed_node else ", and has no report"
        raise DemoError(f"the workflow {record.state}{where}; the worker's last words:\n{worker.tail()}")
    return packages


def _draw(screen: Screen, place: Path | None, ran: _Ran) -> str | None:
    """Where the picture was written."""
    from headrace.demo import screen as drawing

    if place is None:
        screen.say("No picture of the run: the current directory cannot be written; name a file with --picture.")
        return None
    try:
        path, why = drawing.draw(place, ran.title, ran.nodes)
    except OSError as error:
        # It could be written when the run began; what was found is shown all the same.
        screen.say(f"No picture of the run: {place} cannot be written ({error.strerror}).")
        return None
    screen.say(f"A picture of the run: {path}" + (f", as Mermaid. {why}" if why else ""))
    return str(path)


def _idle() -> list[float]:
    """From the call of ``enqueue`` to the first line of the job, again and again, with nothing else to do; seconds."""
    from headrace.demo import demo_tasks

    samples: list[float] = []
    for _ in range(IDLE_SAMPLES):
        samples.append(demo_tasks.delay.enqueue(time.monotonic()).result(timeout=30))
        time.sleep(IDLE_PAUSE)
    return samples


def _runners(processes: int) -> str:
    return f"{processes} process runner{'s' * (processes != 1)}"
