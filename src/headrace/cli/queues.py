"""``headrace queues``: look at queues, hold and release them, empty them."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated

from headrace.cli.arguments import Yes, argument, option
from headrace.cli.commands import command, group
from headrace.cli.failure import OperationFault, confirm
from headrace.cli.output import Output, bar_of, moment, number, several, span
from headrace.cli.session import Session

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.protocol.overviews import Overview, QueueFacts

# Jobs that one round trip of a purge deletes: others must be served in between.
CHUNK = 1000

Name = Annotated[str, argument("NAME", "The queue's name.")]

# What lists remark on a parked job.
UNKNOWN = "no worker here knew its task"

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
        size = app.queues[name].size
        if not size and (unknown := _unknown(app, name)):
            session.output.remark(unknown)
        if size and not yes:
            deed = f"delete {several(size, 'job')} of {name} for good"
            confirm(deed, f"nothing was deleted: {name} still holds its jobs")
        removed = _purge(session, app, name, size)
        act.count = size
        act.done(f"deleted {several(removed, 'job')} of {name}", name=name, deleted=removed)


def _purge(session: Session, app: Headrace, name: str, size: int) -> int:
    """Delete in pieces, as many as there were: jobs that come faster than they go must not keep it busy for ever."""
    from headrace.protocol import operations

    removed = 0
    with bar_of(session.output, size) as tell:
        for keys in app.client.shards:
            left = size
            while left and removed < size:
                gone, left = app.client.run(operations.purge(keys, name, min(CHUNK, size - removed)))
                removed += gone
                tell(removed)
                if not gone:
                    break
    return removed
