"""``headrace jobs cancel``, ``retry``, ``rm``: verbs by ids or a filter; ``move`` and ``again``: on one."""

from __future__ import annotations

from typing import Annotated, Any

from headrace.cli import jobs
from headrace.cli.arguments import Checker, json_or_text, quoting
from headrace.cli.bulk_jobs import (
    Detach,
    Everything,
    OfCause,
    OfKey,
    OfQueue,
    OfState,
    OfTask,
    Rate,
    Yes,
    all_of,
)
from headrace.cli.commands import command
from headrace.cli.exit_codes import ExitCode, UsageFault
from headrace.cli.flags import argument, option
from headrace.cli.session import Session
from headrace.model.errand import JobFilter

# Their group, to which this module adds.
app = jobs.app

AnyIds = Annotated[list[str] | None, argument("[ID...]", "Ids of jobs.")]


@command(app, "cancel")
def cancel(
    session: Session,
    ids: AnyIds = None,
    everything: Everything = False,
    state: OfState = None,
    queue: OfQueue = "",
    task: OfTask = "",
    key: OfKey = "",
    yes: Yes = False,
    detach: Detach = False,
) -> int:
    """Cancel jobs: waiting jobs end at once, running jobs are asked to stop, then killed after kill_timeout.

    With --all it cancels all waiting jobs of one state that match the filter now, in pieces. Without --state these are
    the ready jobs of --queue, else the parked jobs of --task, else the scheduled jobs.
    """
    which = JobFilter(state or ("ready" if queue else "parked" if task else "scheduled"), queue, task, key)
    return _some_or_all(session, "cancel", ids, which, everything, state, yes=yes, detach=detach)


@command(app, "retry")
def retry(
    session: Session,
    ids: AnyIds = None,
    everything: Everything = False,
    state: OfState = None,
    queue: OfQueue = "",
    task: OfTask = "",
    key: OfKey = "",
    cause: OfCause = "",
    rate: Rate = 0,
    yes: Yes = False,
    detach: Detach = False,
) -> int:
    """Run finished jobs again, with the same arguments and fresh budgets.

    With --all it retries all jobs that match the filter now, in pieces: failed jobs, unless --state says
    otherwise. `headrace events --json` names causes.
    """
    which = JobFilter(state or "failed", queue, task, key, cause)
    return _some_or_all(session, "retry", ids, which, everything, state, yes=yes, detach=detach, rate=rate)


@command(app, "rm")
def rm(
    session: Session,
    ids: AnyIds = None,
    everything: Everything = False,
    state: OfState = None,
    queue: OfQueue = "",
    task: OfTask = "",
    key: OfKey = "",
    cause: OfCause = "",
    yes: Yes = False,
    detach: Detach = False,
) -> int:
    """Delete jobs that do not run, with all that is stored of them. You cannot undo this.

    With --all it deletes all jobs that match the filter now, in pieces: failed jobs, unless --state says
    otherwise.
    """
    which = JobFilter(state or "failed", queue, task, key, cause)
    return _some_or_all(session, "delete", ids, which, everything, state, yes=yes, detach=detach)


@command(app, "move")
def move(
    session: Session,
    id: jobs.Id,
    queue: Annotated[str | None, option("--queue NAME", "Its new queue.")] = None,
    priority: Annotated[int | None, option("--priority N", "-100 to 100; higher starts sooner.")] = None,
    delay: Annotated[float | None, option("--delay TIME", "Ready after TIME, such as 5m; 0: now.")] = None,
) -> None:
    """Give a job that waits another queue, priority or time. An option that you leave out changes nothing."""
    with session.acting("move", "jobs", id) as (app, act):
        state = app.job(id).move(queue=queue, priority=priority, delay=delay)
        act.reply = f"is {state}"
    session.output.done(f"{id} is {state}", {"id": id, "state": state})


@command(app, "again")
def again(
    session: Session,
    id: jobs.Id,
    changes: Annotated[
        list[str] | None, argument("[NAME=ARG...]", "Arguments that differ: JSON, or else text.")
    ] = None,
    application: Checker = None,
) -> None:
    """Store a new job of the same task, with the options of this one, and its arguments except those that you give.

    Without --app, arguments by position are named by their numbers: `1=7`. The stored job stays as it is.
    """
    import msgspec

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
    session: Session,
    verb: str,
    ids: list[str] | None,
    which: JobFilter,
    everything: bool,
    state: str | None,
    **how: Any,
) -> int:
    """Do a verb on the jobs of these ids, or on all that a filter means."""
    filtered = state is not None or how.get("rate") or any((which.queue, which.task, which.key, which.cause))
    if everything == bool(ids):
        name = "rm" if verb == "delete" else verb
        raise UsageFault(f"give ids, or --all and a filter: headrace jobs {name} --help")
    if filtered and not everything:
        raise UsageFault("a filter goes with --all, in place of ids")
    if ids:
        return _chosen(session, verb, ids)
    all_of(session, verb, which, **how)
    return ExitCode.OK


def _chosen(session: Session, verb: str, ids: list[str]) -> int:
    """Do a verb on the jobs of these ids, as one act."""
    with session.acting(verb, "jobs", *dict.fromkeys(ids)) as (app, act):
        replies = app.jobs.apply(verb, ids)
        return session.tell_each(act, ((one.id, one.done, one.words, one.error) for one in replies))
