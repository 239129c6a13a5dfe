"""``headrace jobs cancel``, ``retry``, ``rm``: verbs by ids or a filter; ``move`` and ``again``: on one."""

from __future__ import annotations

from typing import Annotated, Any

from headrace.cli import jobs
from headrace.cli.arguments import Checker, Flags, Yes, argument, flag, json_or_text, option, quoting, with_flags
from headrace.cli.bulk_jobs import all_of
from headrace.cli.commands import command
from headrace.cli.failure import ExitCode, UsageFault
from headrace.cli.session import Session
from headrace.model.bulk_operation import JobFilter

# Their group, to which this module adds.
app = jobs.app

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
    """Store a new job with the task, options and arguments of this one, except those that you give.

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
    session: Session, verb: str, ids: list[str] | None, usual: str, *,
    everything: bool, state: str, queue: str, task: str, key: str, cause: str = "", rate: int = 0, **how: bool,
) -> int:  # fmt: skip
    if everything == bool(ids):
        name = "rm" if verb == "delete" else verb
        raise UsageFault(f"give ids, or --all and a filter: headrace jobs {name} --help")
    if any((state, queue, task, key, cause, rate)) and not everything:
        raise UsageFault("a filter goes with --all, in place of ids")
    if ids:
        return _chosen(session, verb, ids)
    all_of(session, verb, JobFilter(state or usual, queue, task, key, cause), rate=rate, **how)
    return ExitCode.OK


def _chosen(session: Session, verb: str, ids: list[str]) -> int:
    with session.acting(verb, "jobs", *dict.fromkeys(ids)) as (app, act):
        replies = app.jobs.apply(verb, ids)
        return session.tell_each(act, ((one.id, one.done, one.words, one.error) for one in replies))
