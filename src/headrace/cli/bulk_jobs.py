"""Verbs on many jobs: ``headrace jobs retry --all``, and ``headrace bulk``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

from headrace.cli.arguments import argument
from headrace.cli.commands import command, group
from headrace.cli.failure import confirm
from headrace.cli.output import bar_of, distance, several
from headrace.cli.session import Session, user

if TYPE_CHECKING:
    from headrace.model.bulk_operation import BulkOperation, JobFilter

Id = Annotated[str, argument("ID", "The id of the operation.")]

app = group("Look at bulk operations, which are verbs on many jobs, and stop them.")


def all_of(
    session: Session, verb: str, which: JobFilter, *, rate: int = 0, yes: bool = False, detach: bool = False
) -> None:
    """Do a verb on all jobs that a filter means: count, ask, and do it here; or have a worker do it."""
    from headrace.model.bulk_operation import BulkProgress

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
            with bar_of(session.output, counted.matched) as tell:
                progress = BulkProgress()
                for progress in headrace.bulk.pieces(verb, which, rate=rate):
                    tell(progress.done)
            act.reply = progress.words
            facts = {"verb": verb, "jobs": which.words, "done": progress.done, "refused": progress.refused}
            session.output.done(f"{verb} {which.words}: {progress.words}", facts)
            return
        one = headrace.bulk.start(verb, which, who=user(), by="cli", rate=rate, total=counted)
        act.reply = f"bulk operation {one.id} began"
        session.output.done(f"{one.id}: a worker does it", facts_of(one))
        if not headrace.overview().live:
            session.output.remark("no worker lives: start one")


@command(app, "list")
def list_(session: Session) -> None:
    """List the newest bulk operations: what they do, for which jobs, and how far they are."""
    with session.view(hide=True) as headrace:
        found = headrace.bulk.page()
    if session.output.documents(map(facts_of, found)):
        return
    now = time.time()
    rows = [
        (
            one.id,
            one.request.verb,
            one.request.which.words,
            one.state,
            one.words,
            distance(one.request.bound_us, now),
            one.request.who,
        )
        for one in found
    ]
    session.output.table(("id", "verb", "jobs", "state", "done", "began", "who"), rows, keep=("id",), spare="who")
    if not found:
        session.output.remark("no bulk operation was started within a week")


@command(app, "show")
def show(session: Session, id: Id) -> None:
    """Show how far a bulk operation is: done, refused by reason, and the count before."""
    with session.view(hide=True) as headrace:
        one = headrace.bulk.get(id)
    if session.output.json:
        session.output.document(facts_of(one))
        return
    asked = one.request
    session.output.line(f"{asked.verb} {asked.which.words}: {one.state}")
    counted = f"counted before: {_at_least(asked.exact)}{asked.total:,}"
    session.output.line(f"{one.words}; looked at {one.progress.looked:,}, {counted}")
    session.output.line(f"began {distance(asked.bound_us, time.time())}, by {asked.who} ({asked.by})")


@command(app, "stop")
def stop(session: Session, id: Id) -> None:
    """Stop a bulk operation: it touches no further job. You cannot undo the part that is done."""
    with session.acting("stop", "bulk operations", id) as (headrace, act):
        one = headrace.bulk.stop(id)
        act.reply = _stopped(one)
    session.output.done(f"{id} {_stopped(one)}", facts_of(one))


def _stopped(one: BulkOperation) -> str:
    return f"is asked to stop: {one.words}" if one.running else f"is {one.state}: {one.words}"


def _at_least(exact: bool) -> str:
    return "" if exact else "at least "


def facts_of(one: BulkOperation) -> dict[str, Any]:
    from headrace.admin.documents import bulk_document

    return bulk_document(one)
