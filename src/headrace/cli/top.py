"""``headrace top``: a table of the queues that is redrawn in place, or a line or document for each look."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from headrace.cli.arguments import option
from headrace.cli.output import one_line, several, span
from headrace.cli.session import Session

if TYPE_CHECKING:
    from rich.table import Table

    from headrace.app import Headrace
    from headrace.protocol.overviews import Overview

# Seconds between two looks.
EVERY = 2.0
# Rows at most: those whose next job waits longest.
MOST = 50
_SHOWN = ("ready", "running", "scheduled", "blocked", "parked", "failed", "quarantined")


def top(
    session: Session,
    every: Annotated[float | None, option("--every TIME", "How often to look.", "2s")] = None,
    once: Annotated[bool, option("--once", "Look once, print it and exit.")] = False,
) -> None:
    """Show the queues and the number of jobs in each state, and redraw them in place until Ctrl-C.

    The queue whose next job waits longest comes first; NONE marks jobs that no worker serves. Into a pipe it prints one
    line for each look, with --json one document. While the server is away it waits. The dashboard shows more, and acts.
    """
    pause = max(0.2, EVERY if every is None else every)
    with session.view() as app:
        if once and session.output.json:
            session.output.document(document(app.overview()))
        elif once:
            session.output.console().print(table(app.overview()))
        elif session.output.json or not sys.stdout.isatty():
            _follow(session, app, pause)
        else:
            _redraw(app, pause)


def document(seen: Overview) -> dict[str, Any]:
    """What is shown, for programs: the queues of the table, live workers, and running jobs, the longest first."""
    from headrace.model.notation import iso

    queues: list[dict[str, Any]] = [
        {"name": queue.name, "ready": queue.size, "delay": delay, "paused": queue.paused, "workers": workers}
        for queue, delay, workers in _rows(seen)
    ]
    runs: list[dict[str, Any]] = [
        {"job": one.job, "task": one.task, "worker": worker.place, "seconds": max(0, seen.now - one.since) / 1e6}
        for worker in seen.workers
        for one in worker.runners
        if one.job and one.since
    ]
    workers: list[dict[str, Any]] = [
        {
            "place": worker.place,
            "running": worker.running,
            "slots": worker.slots,
            "memory": sum(one.memory for one in worker.runners),
        }
        for worker in seen.live
    ]
    return {
        "now": iso(seen.now),
        "states": dict(seen.states),
        "queues": queues,
        "workers": sorted(workers, key=lambda row: (-row["running"], row["place"]))[:MOST],
        "runs": sorted(runs, key=lambda row: -row["seconds"])[:MOST],
    }


def summary(seen: Overview) -> str:
    counts = {name: seen.states.get(name, 0) for name in _SHOWN}
    states = " ".join(f"{name} {count:,}" for name, count in counts.items() if count or name in _SHOWN[:2])
    clock = time.strftime("%H:%M:%S %Z", time.localtime(seen.now / 1e6))
    slots = several(sum(worker.slots for worker in seen.live), "slot")
    return f"{clock} {states}, {several(len(seen.live), 'worker')}, {slots}"


def table(seen: Overview, trouble: str = "") -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    head = "\n".join(filter(None, [summary(seen), trouble]))
    drawn = Table(title=Text(head), title_justify="left", box=box.SIMPLE_HEAD)
    drawn.add_column("queue")
    for name in ("ready", "delay", "workers"):
        drawn.add_column(name, justify="right")
    drawn.add_column("")
    for queue, delay, workers in _rows(seen):
        served = str(workers) if workers or not queue.size else "NONE"
        cells = (f"{queue.size:,}", span(delay) if queue.size else "-", served, "paused" if queue.paused else "")
        drawn.add_row(Text(one_line(queue.name)), *cells)
    return drawn


def _rows(seen: Overview) -> list[tuple[Any, float, int]]:
    served = seen.served
    rows = [(queue, queue.waited(seen.now) or 0.0, served[queue.name]) for queue in seen.queues]
    return sorted(rows, key=lambda row: (-row[1], -row[0].size, row[0].name))[:MOST]


def _follow(session: Session, app: Headrace, pause: float) -> NoReturn:
    from headrace.errors import StoreUnavailable

    seen = app.overview()
    while True:
        session.output.done(summary(seen), document(seen))
        sys.stdout.flush()
        time.sleep(pause)
        # A look waits for as long as any call does, and says so: an outage is a gap.
        while True:
            with suppress(StoreUnavailable):
                seen = app.overview()
                break


def _redraw(app: Headrace, pause: float) -> None:
    from rich.live import Live

    from headrace.errors import HeadraceError

    seen, trouble = app.overview(), ""
    with suppress(KeyboardInterrupt), Live(screen=True, auto_refresh=False) as live:
        while True:
            live.update(table(seen, trouble), refresh=True)
            time.sleep(pause)
            try:
                seen, trouble = app.overview(), ""
            except HeadraceError as error:
                trouble = one_line(error)
