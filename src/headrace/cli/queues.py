"""``headrace queues`` and ``headrace top``: look at queues, hold and release them, empty them; watch them."""

from __future__ import annotations

import difflib
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from headrace.cli.arguments import Yes, argument, option
from headrace.cli.commands import command, group
from headrace.cli.output import Output, bar_of, moment, number, one_line, several, span
from headrace.cli.session import OperationFault, Session, confirm
from headrace.errors import HeadraceError, StoreUnavailable
from headrace.model.notation import iso

if TYPE_CHECKING:
    from rich.table import Table

    from headrace.app import Headrace
    from headrace.protocol.overviews import Overview, QueueFacts

CHUNK = 1000  # jobs that one round trip of a purge deletes: others must be served in between

Name = Annotated[str, argument("NAME", "The queue's name.")]

UNKNOWN = "no worker here knew its task"  # what lists remark on a parked job

app = group("List, pause, resume and purge queues.")


@command(app, "list")
def list_(session: Session) -> None:
    """List the queues: their ready jobs, and how long the next job has waited."""
    from headrace.admin.documents import queue_document

    with session.view(hide=True) as app:
        seen = app.overview()
    served = seen.served
    rows: list[tuple[object, ...]] = []
    for queue in seen.queues:
        seconds = queue.waited(seen.now)
        wait = "-" if seconds is None else span(seconds)
        rows.append((queue.name, f"{queue.size:,}", _paused(queue, seen.now), wait, served[queue.name]))
    session.output.listing(
        (queue_document(queue, seen.now, served[queue.name]) for queue in seen.queues),
        ("queue", ">ready", "paused", ">oldest wait", ">workers"), rows, empty="no queue has held work yet",
    )  # fmt: skip
    tell_unserved(session.output, seen, [queue.name for queue in seen.queues if queue.size])


def tell_unserved(output: Output, seen: Overview, names: Collection[str]) -> None:
    from headrace.tasks.reasons import PAGE

    if silent := [name for name in names if not seen.served[name]]:
        more = f" and {len(silent) - 5} more" if len(silent) > 5 else ""
        output.remark(
            f"no worker serves {', '.join(silent[:5])}{more}: jobs there wait until one is started with "
            f"--queues {','.join(silent[:5])}; {PAGE}"
        )


def _check_known(app: Headrace, name: str, remedy: str = "") -> None:
    if unknown := _unknown(app, name):
        raise OperationFault(unknown + remedy)


def _unknown(app: Headrace, name: str) -> str:
    names = app.overview().names
    if name in names:
        return ""
    others = f"there are {', '.join(names[:10])}." if names else "there is none yet."
    near = difflib.get_close_matches(name, names, 1, 0.5)
    hint = f"did you mean {near[0]}?" if near else others
    return f"no queue {name} has held work lately, is paused or is served: {hint}"


def _paused(queue: QueueFacts, now: int) -> str:
    note = f": {queue.note}" if queue.note else ""
    if queue.until:
        return f"until {moment(queue.until, now / 1e6)}{note}"
    return f"paused{note}" if queue.paused else "-"


@command(app, "load")
def load(
    session: Session,
    name: Name,
    target: Annotated[
        float | None, option("--target TIME", "Time within which all ready jobs are to start.", "30s")
    ] = None,
) -> None:
    """Show how much work a queue has, and how many jobs should run at once."""
    with session.view() as app:
        queue = app.queues[name]
        _check_known(app, name)
        found = queue.load(30.0 if target is None else target)
    session.output.details(
        found,
        [
            ("queue", f"{found.queue}, paused" if found.paused else found.queue),
            ("ready", f"{found.ready:,}"),
            ("running", f"{found.running:,}"),
            ("due within a minute", f"{found.due:,}"),
            ("arrivals", f"{number(found.arrivals * 60)} a minute, of ten minutes"),
            ("mean run", span(found.run) if found.run else "unknown: none ended within a day"),
            ("drained in", "never: nothing runs" if found.drain is None else span(found.drain)),
            ("wanted", f"{several(found.wanted, 'job')} at once, to start all within {span(found.target)}"),
        ],
    )


@command(app, "pause")
def pause(
    session: Session,
    name: Name,
    duration: Annotated[float | None, option("--for TIME", "Resume it after TIME, such as 10m.")] = None,
    note: Annotated[str, option("--note TEXT", "Why, for others.", "none")] = "",
    create: Annotated[bool, option("--create", "Pause it even if there is no such queue yet.")] = False,
) -> None:
    """Pause a queue: none of its jobs starts; programs can still enqueue, running jobs finish.

    A second pause replaces the end and the note of the first one; without --for, it has no end.
    """
    with session.acting("pause", "queues", name) as (app, act):
        queue = app.queues[name]
        if not create:
            _check_known(app, name, " Add --create to pause it anyway")
        changed = queue.pause(duration, note)
        text = f"{name} {'is paused' if changed else 'was paused already'}"
        text += f"; it is resumed in {span(duration)}" if duration is not None else ""
        act.done(text, name=name, paused=True, changed=changed, **{"for": duration})


@command(app, "resume")
def resume(session: Session, name: Name) -> None:
    """Resume a paused queue: its jobs start again."""
    with session.acting("resume", "queues", name) as (app, act):
        queue = app.queues[name]
        _check_known(app, name)
        changed = queue.resume()
        text = f"{name} {'is served again' if changed else 'was not paused'}"
        act.done(text, name=name, paused=False, changed=changed)


@command(app, "purge")
def purge(session: Session, name: Name, yes: Yes = False) -> None:
    """Delete the ready jobs of a queue; scheduled and running jobs stay. You cannot undo this."""
    with session.acting("purge", "queues", name) as (app, act):
        sizes = _sizes(app, name)
        size = sum(sizes)
        if not size and (unknown := _unknown(app, name)):
            session.output.remark(unknown)
        if size and not yes:
            deed = f"delete {several(size, 'job')} of {name} for good"
            confirm(deed, f"nothing was deleted: {name} still holds its jobs")
        removed = _purge(session, app, name, sizes)
        act.count = size
        act.done(f"deleted {several(removed, 'job')} of {name}", name=name, deleted=removed)


def _sizes(app: Headrace, name: str) -> list[int]:
    """The ready jobs of each shard. Raises StoreUnavailable: one does not answer, so nothing is deleted elsewhere."""
    from headrace.protocol import index_pages

    index = f"ready:{name}"
    return [part.run(index_pages.page(part.keys, index, index_pages.Slice(1))).count for part in app.store.parts]


def _purge(session: Session, app: Headrace, name: str, sizes: list[int]) -> int:
    """Delete in pieces, as many as there were: jobs that come faster than they go must not keep it busy for ever."""
    from headrace.protocol import operations

    removed = 0
    with bar_of(session.output, sum(sizes)) as tell:
        for keys, size in zip(app.client.shards, sizes, strict=True):
            left, end = size, removed + size
            while left and removed < end:
                gone, left = app.client.run(operations.purge(keys, name, min(CHUNK, end - removed)))
                removed += gone
                tell(removed)
                if not gone:
                    break
    return removed


EVERY = 2.0  # seconds between two looks
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
            session.output.document(top_document(app.overview()))
        elif once:
            session.output.console().print(table(app.overview()))
        elif session.output.json or not sys.stdout.isatty():
            _follow(session, app, pause)
        else:
            _redraw(app, pause)


def top_document(seen: Overview) -> dict[str, Any]:
    queues = [
        {"name": queue.name, "ready": queue.size, "delay": delay, "paused": queue.paused, "workers": workers}
        for queue, delay, workers in _rows(seen)
    ]
    slots = sum(worker.slots for worker in seen.live)
    return {
        "now": iso(seen.now), "states": dict(seen.states), "queues": queues, "workers": len(seen.live), "slots": slots,
    }  # fmt: skip


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
    seen = app.overview()
    while True:
        session.output.done(summary(seen), top_document(seen))
        sys.stdout.flush()
        time.sleep(pause)
        # A look waits for as long as any call does, and says so: an outage is a gap.
        while True:
            with suppress(StoreUnavailable):
                seen = app.overview()
                break


def _redraw(app: Headrace, pause: float) -> None:
    from rich.live import Live

    seen, trouble = app.overview(), ""
    with suppress(KeyboardInterrupt), Live(screen=True, auto_refresh=False) as live:
        while True:
            live.update(table(seen, trouble), refresh=True)
            time.sleep(pause)
            try:
                seen, trouble = app.overview(), ""
            except HeadraceError as error:
                trouble = one_line(error)
