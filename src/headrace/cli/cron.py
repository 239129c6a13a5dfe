"""``headrace cron``: look at schedules, hold, run and backfill them. No code of the application is needed."""

from __future__ import annotations

from typing import Annotated, Any

from headrace.cli.arguments import Yes, argument, option
from headrace.cli.commands import command, group
from headrace.cli.output import distance, local, parse_moment, several
from headrace.cli.session import OperationFault, Session, confirm
from headrace.model.notation import iso

Name = Annotated[str, argument("NAME", "The schedule's name.")]
Overlap = Annotated[
    str | None, option("--overlap POLICY", "Instead of the schedule's own policy: skip, buffer_all, allow_all, ...")
]

app = group("List, show, pause, run and backfill schedules.")


@command(app, "list")
def list_(
    session: Session,
    after: Annotated[str, option("--after NAME", "Begin behind this name.")] = "",
    limit: Annotated[int, option("--limit N", "Schedules at most.", min=1, max=500)] = 100,
) -> None:
    """List the schedules by name: their times, what they run, what is next."""
    from headrace.schedules.schedule_handle import schedule_document, times_of

    with session.view(hide=True) as headrace:
        page = headrace.schedules.page(after, limit)
    now = page.now / 1e6
    rows: list[tuple[object, ...]] = []
    for record in page:
        coming = distance(record.ticks[0][1], now) if record.ticks and record.state == "active" else "-"
        state = f"paused: {record.paused}" if record.paused else record.state
        rows.append((record.name, state, times_of(record), record.task, coming, record.runs))
    columns = ("schedule", "state", "times", "task", "next", ">runs")
    session.output.listing(
        map(schedule_document, page), columns, rows,
        keep=("schedule",), spare="task", following=page.next, note=f"{page.count:,} in all" if page.next else "",
    )  # fmt: skip


@command(app, "show")
def show(session: Session, name: Name) -> None:
    """Show one schedule: its times, policies, state and counts."""
    from headrace.schedules.schedule_handle import schedule_document

    with session.view(hide=True) as headrace:
        record = headrace.schedules[name].read()
    facts = schedule_document(record, lambda at: local(at) if at else None)
    session.output.details(
        schedule_document(record), ((field.replace("_", " "), value) for field, value in facts.items())
    )


@command(app, "next")
def next_(
    session: Session, name: Name, count: Annotated[int, option("--count -n N", "How many.", min=1, max=1000)] = 5
) -> None:
    """Show when the next jobs of a schedule are due, with their jitter."""
    with session.view(hide=True) as headrace:
        times = headrace.schedules[name].next(count)
    for time in times:
        microseconds = round(time.timestamp() * 1e6)
        if session.output.json:
            session.output.document({"due": iso(microseconds)})
        else:
            session.output.line(local(microseconds))
    if not times:
        session.output.remark(f"{name} has ended")


@command(app, "ticks")
def ticks(
    session: Session, name: Name, count: Annotated[int, option("--count -n N", "How many.", min=1, max=100)] = 20
) -> None:
    """Show the last ticks of a schedule, newest first: which ran, and why others did not."""
    from headrace.schedules.schedule_handle import tick_document

    with session.view(hide=True) as headrace:
        found = headrace.schedules[name].ticks(count)
    rows = [(local(one.tick), one.what, f"{one.count}" if one.count > 1 else "", one.text) for one in found]
    columns = ("tick", "what", ">times", "job or why")
    session.output.listing(map(tick_document, found), columns, rows, keep=("tick", "job or why"))


@command(app, "pause")
def pause(
    session: Session, name: Name, note: Annotated[str, option("--note TEXT", "Why; `list` and `show` tell it.")] = ""
) -> None:
    """Pause a schedule: its ticks make no jobs, now or later. Running jobs finish."""
    with session.acting("pause", "schedules", name) as (headrace, act):
        changed = headrace.schedules[name].pause(note)
        text = f"{name} {'is paused' if changed else 'was paused already'}"
        act.done(text, name=name, paused=True, changed=changed, note=note)


@command(app, "resume")
def resume(session: Session, name: Name) -> None:
    """Resume a paused schedule, from its next tick on."""
    with session.acting("resume", "schedules", name) as (headrace, act):
        changed = headrace.schedules[name].resume()
        act.done(f"{name} {'ticks again' if changed else 'was not paused'}", name=name, paused=False, changed=changed)


@command(app, "run")
def run(session: Session, name: Name, overlap: Overlap = None) -> None:
    """Make a job of a schedule now, if its overlap policy allows it."""
    with session.acting("run", "schedules", name) as (headrace, act):
        job = headrace.schedules[name].run(overlap)  # type: ignore[arg-type]
        act.reply = f"made job {job.id}" if job else "a job of it is at work, and its overlap policy makes no other"
    if job is None:
        raise OperationFault(
            f"a job of {name} is at work, and its overlap policy makes no other: --overlap allow_all does"
        )
    session.output.done(job.id, {"name": name, "job": job.id})


@command(app, "backfill")
def backfill(
    session: Session,
    name: Name,
    start: Annotated[
        Any, option("--from TIME", "Ticks after this time, such as 2026-11-21T00:00 or 2d ago.", parser=parse_moment)
    ],
    end: Annotated[Any, option("--to TIME", "Ticks until this time.", "now", parser=parse_moment)] = "0s",
    overlap: Overlap = None,
    most: Annotated[int, option("--most N", "Refuse more ticks than this.", min=1, max=100_000)] = 500,
    again: Annotated[bool, option("--again", "Also ticks that ran before.")] = False,
) -> None:
    """Make the jobs of past ticks, each with its own tick; those that ran are left out."""
    with session.acting("backfill", "schedules", name) as (headrace, act):
        made = headrace.schedules[name].backfill(start, end, overlap=overlap, most=most, again=again)  # type: ignore[arg-type]
        act.count = len(made)
        act.done(f"made {several(len(made), 'job')} of {name}", name=name, jobs=[job.id for job in made])


@command(app, "rm")
def rm(
    session: Session, names: Annotated[list[str], argument("NAME...", "Names of schedules.")], yes: Yes = False
) -> None:
    """Delete schedules with their histories; their jobs stay. The next worker stores declared schedules again."""
    names = list(dict.fromkeys(names))
    if not yes:
        confirm(f"delete {', '.join(names)} for good", "nothing was deleted")
    with session.acting("delete", "schedules", *names) as (headrace, act):
        gone = [name for name in names if headrace.schedules[name].delete()]
        act.done(f"deleted {several(len(gone), 'schedule')}", deleted=gone)
    if len(gone) < len(names):
        raise OperationFault(f"there is no schedule {', '.join(sorted(set(names) - set(gone)))}")
