"""``headrace demo``: a real workflow on a real worker measures the standard library of this machine.

``demo_tasks`` is the application, ``stage`` the server and the worker, ``watch`` follows the run and shows its cost.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import msgspec
from rich.console import Console

from headrace.demo.stage import staged
from headrace.errors import OptionsError
from headrace.picture import form_of

PICTURE = Path("headrace-demo.svg")


def main(*, processes: int, limit: int | None, picture: Path | None, json: bool) -> int:
    """Run the demo; it needs no server and leaves nothing behind but a picture, also when it is interrupted.

    Args:
        processes: runners of the worker.
        limit: measure this many files, spread over the library; None: all.
        picture: where to draw the run; None: ``headrace-demo.svg`` in the current directory, if that can be written.
        json: print one JSON document instead of progress and tables.

    Returns:
        0 when every job succeeded, else 1.
    """
    place = place_of(picture)
    console = Console(quiet=json, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 100
    with staged() as stage:
        # Imported only now: the application reads the settings that the stage has just made.
        from headrace.demo import watch
        from headrace.demo.demo_tasks import app, survey

        with app, watch.counting_reads(stage.url) as reads:
            console.print(f"A survey of Python {platform.python_version()}'s own library, as a workflow:\n")
            console.print(watch.sketch(survey.graph(limit), console.width) + "\n", soft_wrap=True)
            run = survey.create(limit)
            run.start()
            # Each request of this process is one read of the server, the questions included.
            before = reads() - app.store.round_trips
            worker = stage.worker(processes)
            runners = f"{processes} process runner{'s' * (processes != 1)}"
            console.print(f"{stage.server} in a temporary directory; worker {worker.pid} with {runners}")
            packages = watch.follow(run, worker, console)
            trips = reads() - 1 - app.store.round_trips - before
            nodes = watch.collect(run)
            survived = watch.survived(nodes)
            cost = watch.bill(nodes, processes, trips)
    for text in survived:
        console.print(text, style="yellow", soft_wrap=True)
    for table in (watch.findings(packages), watch.costs(cost)):
        console.print()
        console.print(table)
    drawn, line = watch.draw(place, f"{run.definition} {run.id}", nodes)
    console.print(line, soft_wrap=True)
    if json:
        document = watch.facts(packages, cost, survived, stage.server, drawn)
        sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
    return 1 if cost["lost"] else 0


def place_of(asked: Path | None) -> Path | None:
    """Choose the picture's path before anything runs; None: none was asked for, and the default cannot be written."""
    path = asked or PICTURE
    form_of(path)
    if not path.is_dir() and os.access(path if path.exists() else path.parent, os.W_OK):
        return path
    if asked is None:
        return None
    raise OptionsError(f"the picture cannot be written to {path}: name another file with --picture")
