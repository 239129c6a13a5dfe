"""Verbs on many jobs: ``headrace jobs retry --all``, and ``headrace errands``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

from headrace.cli.arguments import argument
from headrace.cli.commands import command, group
from headrace.cli.failure import confirm
from headrace.cli.output import bar_of, distance, several
from headrace.cli.session import Session, user

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.model.errand import Errand, JobFilter

Id = Annotated[str, argument("ID", "The errand's id.")]

app = group("Look at verbs on many jobs (errands), and stop them.")


def all_of(
    session: Session, verb: str, which: JobFilter, *, rate: int = 0, yes: bool = False, detach: bool = False
) -> None:
    """Do a verb on all jobs that a filter means: count, ask, begin, and work until the end."""
    with session.acting(verb, "jobs", scope=which.words) as (headrace, act):
        counted = headrace.errands.count(verb, which)
        if counted.nodes:
            nodes, verb_of_flows = several(counted.nodes, "node"), "retry" if verb == "retry" else "rm"
            session.output.remark(f"{nodes} of workflows are left alone: headrace workflows {verb_of_flows} ID")
        if not yes and (counted.matched or not counted.exact):
            jobs = f"{_at_least(counted.exact)}{several(counted.matched, 'job')}"
            confirm(f"{verb} {jobs} ({which.words})", "nothing was done", "You cannot undo this.")
        errand = headrace.errands.start(verb, which, who=user(), by="cli", rate=rate, total=counted)
        act.count = counted.matched
        act.reply = f"errand {errand.id} began"
        if not detach:
            errand = _work(session, headrace, errand)
            act.reply = f"errand {errand.id}: {errand.words}"
    if detach and errand.phase == "running":
        session.output.done(f"{errand.id}: {errand.words}; workers do the rest", facts_of(errand))
    else:
        session.output.done(f"{verb} {which.words}: {errand.words} ({errand.phase})", facts_of(errand))


def _work(session: Session, headrace: Headrace, errand: Errand) -> Errand:
    with bar_of(session.output, errand.total) as tell:
        while errand.phase == "running":
            before = errand.done
            errand = headrace.errands.work(errand.id)
            if errand.rate and errand.phase == "running" and errand.done == before:
                # Its next piece is not due yet.
                time.sleep(0.2)
            tell(errand.done)
    return errand


@command(app, "list")
def list_(session: Session) -> None:
    """List the newest errands: what they do, for which jobs, and how far they have come."""
    with session.view(hide=True) as headrace:
        found = headrace.errands.page()
    if session.output.documents(map(facts_of, found)):
        return
    now = time.time()
    rows = [
        (one.id, one.verb, one.which.words, one.phase, one.words, distance(one.bound_us, now), one.who) for one in found
    ]
    session.output.table(("id", "verb", "jobs", "state", "done", "began", "who"), rows, keep=("id",), spare="who")
    if not found:
        session.output.remark("no verb was done on many jobs within a week")


@command(app, "show")
def show(session: Session, id: Id) -> None:
    """Show how far an errand has come: done, refused by reason, and the count before."""
    with session.view(hide=True) as headrace:
        one = headrace.errands.get(id)
    if session.output.json:
        session.output.document(facts_of(one))
        return
    session.output.line(f"{one.verb} {one.which.words}: {one.phase}")
    session.output.line(f"{one.words}; looked at {one.looked:,}, counted before: {_at_least(one.exact)}{one.total:,}")
    session.output.line(f"began {distance(one.bound_us, time.time())}, by {one.who} ({one.by})")


@command(app, "work")
def work(session: Session, id: Id) -> None:
    """Do the rest of an errand here, as workers would, until it has ended."""
    with session.view() as headrace:
        one = _work(session, headrace, headrace.errands.get(id))
    session.output.done(f"{id} is {one.phase}: {one.words}", facts_of(one))


@command(app, "stop")
def stop(session: Session, id: Id) -> None:
    """Stop an errand: it touches no further job. You cannot undo the part that is done."""
    with session.acting("stop", "errands", id) as (headrace, act):
        one = headrace.errands.stop(id)
        act.reply = f"{one.phase}: {one.words}"
    session.output.done(f"{id} is {one.phase}: {one.words}", facts_of(one))


def _at_least(exact: bool) -> str:
    return "" if exact else "at least "


def facts_of(one: Errand) -> dict[str, Any]:
    from headrace.admin.documents import errand_document

    return errand_document(one)
