"""``headrace jobs``, ``enqueue`` and ``bulk``: store jobs, look at them, wait, cancel, retry and delete them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from headrace.cli import queues
from headrace.cli.arguments import (
    Checker,
    Flags,
    Given,
    Yes,
    argument,
    flag,
    json_or_text,
    option,
    parse_arguments,
    quoting,
    undefined,
    with_flags,
)
from headrace.cli.commands import command, group
from headrace.cli.output import bar_of, distance, percent, several
from headrace.cli.session import ExitCode, Session, UsageFault, close_values, confirm, user_at_host
from headrace.model.job import State
from headrace.model.notation import size
from headrace.model.option_checks import OptionRow
from headrace.model.options import ROWS

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.model.job_record import Page, Record
    from headrace.protocol.operations import BulkOperation, JobFilter

# Without --state: what happens now comes first, then what went wrong, then what is over.
EACH: tuple[str, ...] = (
    "running", "ready", "scheduled", "blocked", "stopped", "parked", "quarantined", "failed", "cancelled", "succeeded",
    "skipped",
)  # fmt: skip

# States of jobs that have not started, or not again.
WAITING = ("ready", "scheduled", "blocked", "stopped", "parked")

Id = Annotated[str, argument("ID", "The job's id.")]


app = group("List, show, explain, cancel, retry and delete jobs.")


@command(app, "list")
def list_(
    session: Session,
    state: Annotated[State | None, option("--state STATE", f"Only jobs of one state: {', '.join(EACH)}.")] = None,
    queue: Annotated[str | None, option("--queue NAME", "Only jobs of this queue.")] = None,
    task: Annotated[str | None, option("--task NAME", "Only jobs of this task.")] = None,
    key: Annotated[str | None, option("--key TEXT", "Only jobs of this key.")] = None,
    limit: Annotated[int, option("--limit N", "Jobs on a page, 1 to 1000.")] = 50,
    after: Annotated[str | None, option("--after CURSOR", "Continue after the previous page.")] = None,
    order: Annotated[
        Literal["asc", "desc"], option("--order asc|desc", "Within a state: desc is newest first.")
    ] = "desc",
    own: Annotated[
        bool, option("--own", "Headrace's own jobs, of any state: calls of hooks, bulk operations.")
    ] = False,
) -> None:
    """List jobs, a page at a time.

    With --json: one line a job, then one with the cursor of the next page if there is one.

    Without --state it lists running and waiting jobs first, then those that went wrong, then those that succeeded. With
    --queue, --task or --key a page reads at most 1,000 jobs of a state, so it may have fewer jobs than --limit and
    still have a next page. Ordered jobs that wait for their turn are blocked, and are listed with their --key.
    """
    from headrace.admin.documents import job_summary

    if own and (state or queue or task or key or order == "asc"):
        raise UsageFault("--own lists Headrace's own jobs, the newest first: leave the filters out")
    with session.view(hide=True) as app:
        states = EACH if state is None else (state,)
        if after is not None and state is None and not own:
            states = EACH[EACH.index(_state_of(after)) :]
        pages = _pages(app, states, queue=queue, task=task, key=key, limit=limit, after=after, order=order)
        if own:
            pages = iter([app.jobs.own(limit=limit, after=after)])
        records: list[Record] = []
        following: str | None = None
        for page in pages:
            records += page.rows
            following = page.next
        ready = {record.queue for record in records if record.state == "ready" and not own}
        seen = app.overview() if ready and not session.output.json else None
    now = time.time()
    session.output.listing(
        map(job_summary, records), ("id", "state", "task", "queue", ">since", "remark"),
        [(r.id, r.state, r.task, r.queue, distance(_since(r), now), _remark(r)) for r in records],
        keep=("id", "state", "since"), spare="remark", following=following,
        empty="no jobs here" + (", so far: the next page may hold some" if following else ""),
    )  # fmt: skip
    if seen is not None:
        queues.tell_unserved(session.output, seen, sorted(ready))


def _pages(
    app: Headrace, states: tuple[str, ...], *, limit: int, after: str | None, **filters: Any
) -> Iterator[Page[Record]]:
    for state in states:
        page = app.jobs.page(state, limit=limit, after=after, values=False, **filters)
        yield page
        limit, after = limit - len(page), None
        if page.next is not None or limit == 0:
            return


def _state_of(cursor: str) -> str:
    kind = cursor.split("~", 2)[-1].partition(":")[0]
    name = {"claims": "running", "chain": "blocked"}.get(kind, kind)
    # One that is not a cursor is left to the page to refuse.
    return name if name in EACH else EACH[0]


def _since(record: Record) -> int:
    if record.state.final:
        return record.finished_us
    return {"running": record.started_us, "scheduled": record.due_us}.get(record.state, record.created_us)


def _remark(record: Record) -> str:
    return "; ".join(text for text in (record.note, _happened(record)) if text)


def _happened(record: Record) -> str:
    if record.error is not None:
        return record.error.brief[:120]
    if record.progress is not None and record.state == "running":
        return f"{percent(record.progress)} {record.progress_text}".strip()
    return queues.UNKNOWN if record.state == "parked" else ""


@command(app, "show")
def show(session: Session, id: Id) -> None:
    """Show one job: times, attempts, arguments, result, error and evidence, log."""
    from headrace.admin.documents import job_details
    from headrace.cli.job_output import describe
    from headrace.tasks.reasons import PAGE

    with session.view(hide=True) as app:
        job = app.jobs.get(id)
        record, lines = job.refresh(), job.logs()
        cause = str(job.why()) if record.state in WAITING else None
    if session.output.json:
        session.output.document(job_details(record, lines) | {"waits": cause})
        return
    describe(session.output, record, lines, time.time())
    if cause is not None:
        session.output.line(f"\n{cause}; {PAGE}")


@command(app, "why")
def why(session: Session, id: Id) -> int:
    """Explain why a job does not run: each reason, the deciding one first, and its remedy."""
    from headrace.cli.job_output import print_reasons
    from headrace.tasks.reasons import PAGE

    with session.view(hide=True) as app:
        found = app.jobs.why(id)
    if session.output.json:
        session.output.document(found)
    else:
        print_reasons(session.output, found)
        session.output.remark(PAGE)
    return ExitCode.FAILED if found.code == "unknown" else ExitCode.OK


@command(app, "result")
def result(
    session: Session,
    id: Id,
    timeout: Annotated[float | None, option("--timeout TIME", "Wait at most TIME; 0 does not wait.")] = None,
) -> None:
    """Wait until a job has ended, and print its result as JSON.

    Exit code 1: the job has no result. Exit code 5: the timeout passed.
    """
    with session.view() as app:
        value = app.jobs.get(id).result(timeout)
    session.output.document({"id": id, "result": value} if session.output.json else value)


@command(app, "logs")
def logs(
    session: Session,
    id: Id,
    limit: Annotated[int, option("--limit N", "Print at most the last N lines.", min=1)] = 1000,
) -> None:
    """Print the lines that a job logged with current_job().log(...)."""
    with session.view(hide=True) as app:
        lines = app.jobs.get(id).logs(limit)
    if not session.output.documents(lines):
        for line in lines:
            session.output.line(line)


@command(app, "count")
def count(session: Session) -> None:
    """Count jobs by state. The cost does not grow with the number of jobs."""
    with session.view() as app:
        seen = app.overview()
    if session.output.json:
        session.output.document({"states": seen.states, "parked": seen.parked, "kept_bytes": seen.bytes})
        return
    session.output.table(("state", ">jobs"), [(name, f"{seen.states.get(name, 0):,}") for name in EACH])
    for task, jobs in sorted(seen.parked.items()):
        session.output.remark(f"parked: {several(jobs, 'job')} of {task}, which no worker here knows")
    session.output.remark(f"results and errors that are kept take {size(seen.bytes)}")


# -- verbs by ids or a filter, and on one job --------------------------------------------------------------------------

AnyIds = Annotated[list[str] | None, argument("[ID...]", "Ids of jobs.")]

# All of what these verbs may be done to, which of it, and how.
_FILTER: Flags = {
    "everything": flag(bool, "--all", "All jobs that match the filter, in place of ids."),
    "state": flag(str, "--state STATE", "With --all: jobs of this state."),
    "queue": flag(str, "--queue NAME", "With --all: only jobs of this queue."),
    "task": flag(str, "--task NAME", "With --all: only jobs of this task."),
    "key": flag(str, "--key TEXT", "With --all: only jobs of this key."),
}
_CAUSE: Flags = {"cause": flag(str, "--cause ID", "With --all: only failures of this cause.")}
_RATE: Flags = {"rate": flag(int, "--rate N", "With --all: at most N jobs a second.", min=0)}
_HOW: Flags = {
    "yes": (Yes, False),
    "detach": flag(bool, "--detach", "With --all: have a worker do it; print the operation's id."),
}


@command(app, "cancel")
@with_flags({**_FILTER, **_HOW})
def cancel(session: Session, ids: AnyIds = None, **given: Any) -> int:
    """Cancel jobs: waiting jobs end at once, running jobs stop, or are killed after kill_timeout.

    With --all it cancels all waiting jobs of one state that match the filter now, in pieces. Without --state these are
    the ready jobs of --queue, else the parked jobs of --task, else the scheduled jobs.
    """
    usual = "ready" if given["queue"] else "parked" if given["task"] else "scheduled"
    return _some_or_all(session, "cancel", ids, usual, **given)


@command(app, "retry")
@with_flags({**_FILTER, **_CAUSE, **_RATE, **_HOW})
def retry(session: Session, ids: AnyIds = None, **given: Any) -> int:
    """Run finished jobs again, with the same arguments and fresh budgets.

    With --all it retries all jobs that match the filter now, in pieces: failed jobs, unless --state says
    otherwise. `headrace events --json` names causes.
    """
    return _some_or_all(session, "retry", ids, "failed", **given)


@command(app, "rm")
@with_flags({**_FILTER, **_CAUSE, **_HOW})
def rm(session: Session, ids: AnyIds = None, **given: Any) -> int:
    """Delete jobs that do not run, with all that is stored of them. You cannot undo this.

    With --all it deletes all jobs that match the filter now, in pieces: failed jobs, unless --state says
    otherwise.
    """
    return _some_or_all(session, "delete", ids, "failed", **given)


@command(app, "move")
def move(
    session: Session,
    id: Id,
    queue: Annotated[str | None, option("--queue NAME", "Its new queue.")] = None,
    priority: Annotated[int | None, option("--priority N", "-100 to 100; higher starts sooner.")] = None,
    delay: Annotated[float | None, option("--delay TIME", "Ready after TIME, such as 5m; 0: now.")] = None,
) -> None:
    """Give a job that waits another queue, priority or time. An option that you leave out changes nothing."""
    with session.acting("move", "jobs", id) as (app, act):
        state = app.job(id).move(queue=queue, priority=priority, delay=delay)
        act.done(f"{id} is {state}", id=id, state=state)


@command(app, "again")
def again(
    session: Session,
    id: Id,
    changes: Annotated[
        list[str] | None, argument("[NAME=ARG...]", "Arguments that differ: JSON, or else text.")
    ] = None,
    application: Checker = None,
) -> None:
    """Store a new job with the task, options and arguments of this one, except those that you give.

    Without --app, arguments by position are named by their numbers: `1=7`. The stored job stays as it is.
    """
    values: dict[str, Any] = {}
    for one in changes or []:
        name, equals, text = one.partition("=")
        if not equals or name in values:
            raise UsageFault(f"{one!r} cannot be used: write each change as NAME=ARG, and each name once")
        values[name] = msgspec.json.decode(bytes(json_or_text(text)))
    with session.acting("again", "jobs", id, code=application) as (app, act):
        with quoting():
            job = app.jobs.again(id, values)
        act.reply = f"{job.id} is {id} again" + (f", with another {', '.join(values)}" if values else "")
    session.output.done(job.id, {"id": job.id, "again_of": id})


def _some_or_all(
    session: Session, verb: str, ids: list[str] | None, usual: str, *,
    everything: bool, state: str, queue: str, task: str, key: str, cause: str = "", rate: int = 0, **how: bool,
) -> int:  # fmt: skip
    if everything == bool(ids):
        name = "rm" if verb == "delete" else verb
        raise UsageFault(f"give ids, or --all and a filter: headrace jobs {name} --help")
    if any((state, queue, task, key, cause, rate)) and not everything:
        raise UsageFault("a filter goes with --all, in place of ids")
    if ids:
        with session.acting(verb, "jobs", *dict.fromkeys(ids)) as (app, act):
            replies = app.jobs.apply(verb, ids)
            return session.tell_each(act, ((one.id, one.done, one.words, one.error) for one in replies))
    from headrace.protocol.operations import JobFilter

    _apply_to_all(session, verb, JobFilter(state or usual, queue, task, key, cause), rate=rate, **how)
    return ExitCode.OK


# -- bulk operations ---------------------------------------------------------------------------------------------------

BulkId = Annotated[str, argument("ID", "The id of the operation.")]

bulk = group("List and stop bulk operations, which are verbs on many jobs.")


def _apply_to_all(
    session: Session, verb: str, which: JobFilter, *, rate: int = 0, yes: bool = False, detach: bool = False
) -> None:
    with session.acting(verb, "jobs", scope=which.words) as (headrace, act):
        counted = headrace.bulk.count(verb, which)
        if counted.nodes:
            nodes, verb_of_flows = several(counted.nodes, "node"), "retry" if verb == "retry" else "rm"
            session.output.remark(f"{nodes} of workflows are left alone: headrace workflows {verb_of_flows} ID")
        if not yes and (counted.matched or not counted.exact):
            jobs = f"{_at_least(counted.exact)}{several(counted.matched, 'job')}"
            confirm(f"{verb} {jobs} ({which.words})", "nothing was done", "You cannot undo this.")
        act.count = counted.matched
        if not detach:
            from headrace.protocol.operations import BulkProgress

            with bar_of(session.output, counted.matched) as tell:
                progress = BulkProgress()
                for progress in headrace.bulk.pieces(verb, which, rate=rate):
                    tell(progress.done)
            act.reply = progress.words
            facts = {"verb": verb, "jobs": which.words, "done": progress.done, "refused": progress.refused}
            session.output.done(f"{verb} {which.words}: {progress.words}", facts)
            return
        one = headrace.bulk.start(verb, which, who=user_at_host(), by="cli", rate=rate, total=counted)
        act.reply = f"bulk operation {one.id} began"
        session.output.done(f"{one.id}: a worker does it", _facts_of(one))
        if not headrace.overview().live:
            session.output.remark("no worker lives: start one")


@command(bulk, "list")
def list_bulk(session: Session) -> None:
    """List the newest bulk operations: what they do, for which jobs, and how far they are."""
    with session.view(hide=True) as headrace:
        found = headrace.bulk.page()
    now = time.time()
    rows = [
        (
            one.id, one.request.verb, one.request.which.words, one.state, one.words,
            distance(one.request.bound_us, now), one.request.who,
        )
        for one in found
    ]  # fmt: skip
    session.output.listing(
        map(_facts_of, found), ("id", "verb", "jobs", "state", "done", "began", "who"), rows,
        keep=("id",), spare="who", empty="no bulk operation was started within a week",
    )  # fmt: skip


@command(bulk, "show")
def show_bulk(session: Session, id: BulkId) -> None:
    """Show how far a bulk operation is: done, refused by reason, and the count before."""
    with session.view(hide=True) as headrace:
        one = headrace.bulk.get(id)
    if session.output.json:
        session.output.document(_facts_of(one))
        return
    asked = one.request
    session.output.line(f"{asked.verb} {asked.which.words}: {one.state}")
    counted = f"counted before: {_at_least(asked.exact)}{asked.total:,}"
    session.output.line(f"{one.words}; looked at {one.progress.looked:,}, {counted}")
    session.output.line(f"began {distance(asked.bound_us, time.time())}, by {asked.who} ({asked.by})")


@command(bulk, "stop")
def stop_bulk(session: Session, id: BulkId) -> None:
    """Stop a bulk operation: it touches no further job. You cannot undo the part that is done."""
    with session.acting("stop", "bulk operations", id) as (headrace, act):
        one = headrace.bulk.stop(id)
        text = f"is asked to stop: {one.words}" if one.running else f"is {one.state}: {one.words}"
        act.done(f"{id} {text}", **_facts_of(one))


def _at_least(exact: bool) -> str:
    return "" if exact else "at least "


def _facts_of(one: BulkOperation) -> dict[str, Any]:
    from headrace.admin.documents import bulk_document

    return bulk_document(one)


def _flag(name: str, row: OptionRow) -> tuple[Any, Any]:
    assert row.flag is not None
    kind: Any = bool if row.kind is bool else float | None if row.unit == "wait" else row.kind | None
    return flag(kind, f"--{name.replace('_', '-')} {row.flag.value}", row.flag.text, row.default or True)


@with_flags({name: _flag(name, row) for name, row in ROWS.items() if row.flag is not None})
def enqueue(
    session: Session,
    task: Annotated[str, argument("TASK", "The task's name, such as tasks.fetch.")],
    arguments: Given = None,
    kwargs: Annotated[str | None, option("--kwargs JSON", "Arguments by name: a JSON object.")] = None,
    *,
    wait: Annotated[bool, option("--wait", "Wait until it has ended, and print its result as JSON.")] = False,
    timeout: Annotated[float | None, option("--timeout TIME", "With --wait: wait at most TIME.")] = None,
    application: Checker = None,
    **options: Any,
) -> None:
    """Store a job and print its id.

    If another job has its name or its request id, no new job is stored: the id is that of the other one, and JSON says
    fresh false. Without --app, the worker that runs the job checks the arguments. Write an argument that starts with -
    after --.
    """
    if timeout is not None and not wait:
        raise UsageFault("--timeout says how long to --wait: give both")
    packed = parse_arguments(arguments or [], kwargs)
    given: Any = {name: value for name, value in options.items() if value is not None and value is not False}
    with session.code(application) if application else session.app() as app:
        if application and task not in app.tasks:
            raise undefined("task", task, app.tasks)
        with quoting():
            job = app.by_name(task, **given).enqueue_json(*packed)
        name = given.get("queue") or (app.tasks[task].defaults.queue if application else "default")
        facts: dict[str, Any] = {"id": job.id, "task": task, "queue": name, "fresh": job.fresh}
        if not job.fresh:
            what = "name or request id" if "request_id" in given else "name"
            session.output.remark(f"no new job was stored: {job.id} has this {what}")
        if not wait:
            session.output.done(job.id, facts)
            seen = None if session.output.json else app.overview()
            # Without any worker, a person is likely about to start one.
            if seen is not None and seen.served:
                queues.tell_unserved(session.output, seen, [name])
            return
        session.output.remark(job.id)
        close_values(app)
        value = job.result(timeout)
        with suppress(TypeError):
            value = msgspec.to_builtins(value, enc_hook=app.types.encode)
    session.output.document(facts | {"result": value} if session.output.json else value)
