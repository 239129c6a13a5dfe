"""``headrace jobs cancel``, ``retry`` and ``rm``: verbs on jobs by their ids, or on all that a filter means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import jobs
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
from headrace.cli.exit_codes import Exit, UsageFault
from headrace.cli.session import Session
from headrace.model.errand import JobFilter

if TYPE_CHECKING:
    from headrace.app import Headrace

# Their group, to which this module adds.
app = jobs.app

AnyIds = Annotated[list[str] | None, typer.Argument(metavar="[ID...]", help="Ids of jobs.")]


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

    With --all it cancels all waiting jobs that the filter means and that are there now, in pieces: --state scheduled,
    --state ready with --queue, or --state parked with --task.
    """

    def one(app: Headrace, id: str) -> tuple[str, bool]:
        state = app.jobs.get(id).cancel()
        if state == "running":
            return "is running and was asked to stop", True
        if state == "cancelled":
            return "is cancelled", True
        return f"had ended already: {state}", False

    which = JobFilter(state or ("ready" if queue else "parked" if task else "scheduled"), queue, task, key)
    return _some_or_all(session, "cancel", ids, one, which, everything, state, yes=yes, detach=detach)


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

    With --all it retries all jobs that the filter means and that are there now, in pieces: those that failed, unless
    --state says otherwise. `headrace events --json` names causes.
    """

    def one(app: Headrace, id: str) -> tuple[str, bool]:
        app.jobs.get(id).retry()
        return "is ready again", True

    which = JobFilter(state or "failed", queue, task, key, cause)
    return _some_or_all(session, "retry", ids, one, which, everything, state, yes=yes, detach=detach, rate=rate)


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

    With --all it deletes all jobs that the filter means and that are there now, in pieces: those that failed, unless
    --state says otherwise.
    """

    def one(app: Headrace, id: str) -> tuple[str, bool]:
        app.jobs.get(id).delete()
        return "is deleted", True

    which = JobFilter(state or "failed", queue, task, key, cause)
    return _some_or_all(session, "delete", ids, one, which, everything, state, yes=yes, detach=detach)


def _some_or_all(
    session: Session,
    verb: str,
    ids: list[str] | None,
    one: Any,
    which: JobFilter,
    everything: bool,
    state: str | None,
    **how: Any,
) -> int:
    """Do a verb on the jobs of these ids, or on all that a filter means."""
    filtered = state is not None or how.get("rate") or any((which.queue, which.task, which.key, which.cause))
    if everything == bool(ids):
        raise UsageFault(f"give ids, or --all and a filter: headrace jobs {verb} --help")
    if filtered and not everything:
        raise UsageFault("a filter goes with --all, in place of ids")
    if ids:
        return each(session, ids, one, verb, "jobs")
    all_of(session, verb, which, **how)
    return Exit.OK


def each(session: Session, ids: list[str], operate: Any, verb: str, kind: str) -> int:
    """Do one thing to each job or workflow, as one act; one that refuses does not keep the others from it."""
    from headrace.errors import JobNotFound, JobStateError, WorkflowNotFound, WorkflowStateError

    ids, failed = list(dict.fromkeys(ids)), 0
    with session.acting(verb, kind, *ids) as (app, act):
        for id in ids:
            try:
                text, done = operate(app, id)
            except (JobNotFound, JobStateError, WorkflowNotFound, WorkflowStateError) as error:
                failed, act.reply = failed + 1, f"refused: {error}"
                session.output.fault(str(error), type(error).__name__, Exit.FAILED)
                continue
            failed, act.reply = failed + (not done), text
            session.output.done(f"{id} {text}", {"id": id, "done": done, "text": text})
        if len(ids) > 1:
            act.reply = f"{len(ids) - failed} done, {failed} not"
    return Exit.FAILED if failed else Exit.OK
