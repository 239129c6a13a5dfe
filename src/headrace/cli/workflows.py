"""``headrace workflows``: create, start, stop, show, draw, keep and delete them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from headrace.cli.arguments import Given, Yes, argument, defining, definition_of, option, values_of
from headrace.cli.commands import command, group
from headrace.cli.output import distance, late_bar, parse_duration, parse_moment, several
from headrace.cli.session import OperationFault, Session, UsageFault, agreed
from headrace.errors import HeadraceError, StateError, WorkflowNotFound
from headrace.model.job import State

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.workflows.run import WorkflowRun

StateName = Literal["pending", "running", "stopped", "succeeded", "failed", "cancelled"]

Id = Annotated[str, argument("ID", "The workflow's id.")]
Ids = Annotated[list[str], argument("ID...", "Ids of workflows.")]
Code = Annotated[str | None, option("--app MODULE:APP", "The application that defines it.", envvar="HEADRACE_APP")]


app = group("Create, start, stop, show, draw and delete workflows.")


@command(app, "show")
def show(
    session: Session,
    id: Id,
    skip_overview: Annotated[bool, option("--skip-overview", "Only the jobs.")] = False,
    skip_jobs: Annotated[bool, option("--skip-jobs", "Only the overview; reads no job.")] = False,
    jobs: Annotated[State | None, option("--jobs STATE", "Only jobs in one state.")] = None,
    limit: Annotated[int, option("--limit N", "Maximum number of jobs.", min=1)] = 100,
) -> None:
    """Show the progress of a workflow and its jobs, failed ones first."""
    from headrace.admin.documents import node_document, workflow_details
    from headrace.cli import job_output
    from headrace.cli.queues import tell_unserved

    if skip_overview and skip_jobs:
        raise UsageFault("--skip-overview and --skip-jobs together leave nothing to show: take one")
    with session.view(hide=True) as app:
        run = app.workflows.get(id)
        record = run.refresh()
        nodes = [] if skip_jobs else job_output.read(session.output, run, jobs)
        ready = {node.job.queue for node in nodes if node.job.state in ("ready", "parked")}
        seen = app.overview() if ready and not session.output.json else None
    # What waits for others and runs nothing is not a job.
    found = [node for node in job_output.most_urgent_first(nodes) if node.role not in ("join", "pass")]
    shown = found[:limit]
    if session.output.json:
        facts = {} if skip_overview else workflow_details(record)
        session.output.document(facts if skip_jobs else facts | {"jobs": [node_document(node) for node in shown]})
        return
    now = time.time()
    if not skip_overview:
        session.output.facts(job_output.overview(record, nodes if jobs is None else [], now))
    if not skip_jobs:
        job_output.tables(session.output, shown, now)
        if not found:
            session.output.remark(f"no job of it is {jobs}" if jobs else "no job of it is stored")
        elif len(found) > limit:
            session.output.remark(f"{len(found) - limit:,} more: --limit, or --jobs STATE")
    if seen is not None:
        tell_unserved(session.output, seen, sorted(ready))


@command(app, "list")
def list_(
    session: Session,
    state: Annotated[StateName | None, option("--state STATE", "Only those in one state.")] = None,
    definition: Annotated[str | None, option("--definition NAME", "Only those of one definition.")] = None,
    limit: Annotated[int, option("--limit N", "Workflows on a page, 1 to 1000.")] = 100,
    offset: Annotated[int, option("--offset N", "Skip N workflows; -N begins with the N-th from the end.")] = 0,
    after: Annotated[str | None, option("--after CURSOR", "Continue after the previous page.")] = None,
    order: Annotated[Literal["asc", "desc"], option("--order asc|desc", "desc is newest first.")] = "desc",
    since: Annotated[
        Any, option("--since WHEN", "Created then or later: a time, or 2h (ago).", parser=parse_moment)
    ] = None,
    until: Annotated[Any, option("--until WHEN", "Created then or before.", parser=parse_moment)] = None,
    whole: Annotated[bool, option("--all", "All pages, one after the other.")] = False,
) -> None:
    """List workflows by their creation, a page at a time.

    As JSON, one line a workflow, then one with the cursor of the next page if there is one.
    """
    from headrace.admin.documents import workflow_summary
    from headrace.cli import job_output

    query: dict[str, Any] = {
        "state": state, "definition": definition, "limit": limit, "order": order, "since": since, "until": until,
    }  # fmt: skip
    with session.view(hide=True) as app:
        page = app.workflows.page(after=after, offset=offset, **query)
        records = list(page)
        while whole and page.next is not None:
            page = app.workflows.page(after=page.next, **query)
            records += page
    now = time.time()
    session.output.listing(
        map(workflow_summary, records), ("id", "definition", "state", ">jobs", ">done", "created", "remark"),
        [job_output.row(record, now) for record in records],
        keep=("id", "state", "created"), spare="remark", following=page.next,
        empty="no workflow here", note=f"{len(records):,} of {several(page.count, 'workflow')}",
    )  # fmt: skip


@command(app, "viz")
def viz(
    session: Session,
    name: Annotated[str, argument("ID|NAME", "A workflow's id, or with --app a definition's name.")],
    arguments: Annotated[
        list[str] | None, argument("[ARG...]", "Arguments of the definition, as create takes them.")
    ] = None,
    output: Annotated[
        Path | None,
        option("--output -o FILE", "Write this file: .svg, .dot, .mmd or .txt. Without it, print the picture."),
    ] = None,
    application: Code = None,
) -> None:
    """Draw a workflow with its states, or a definition, in the terminal or into a file."""
    from headrace.cli import job_output
    from headrace.model.ids import is_flow
    from headrace.picture import form_of, of_graph, of_nodes, render

    form = "text" if output is None else form_of(output)
    if is_flow(name):
        with session.view(hide=True) as app:
            run = app.workflows.get(name)
            view = of_nodes(f"{run.definition} {run.id}", job_output.read(session.output, run, None))
    else:
        if not application:
            raise UsageFault(f"{name!r} is not the id of a workflow; to draw a definition, name its --app")
        with session.code(application) as app:
            definition = definition_of(app, name)
            positions, named = values_of(app, definition, arguments or [])
            with defining(name):
                view = of_graph(definition.graph(*positions, **named))
    drawn = render(view, form, width=session.output.console().width)
    if output is not None:
        _write(output, drawn)
        session.output.done(str(output), {"file": str(output), "form": form, "jobs": view.jobs})
    elif session.output.json:
        session.output.document({"form": form, "jobs": view.jobs, "picture": drawn})
    else:
        for line in drawn.splitlines():
            session.output.line(line)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OperationFault(f"{path} cannot be written: {error.strerror}") from error


@command(app, "create")
def create(
    session: Session,
    name: Annotated[str, argument("NAME", "The definition's name, such as tasks.thumbnails.")],
    arguments: Given = None,
    start_it: Annotated[bool, option("--start", "Start it at once.")] = False,
    key: Annotated[str | None, option("--key TEXT", "Return the live workflow with this key, if there is one.")] = None,
    application: Code = None,
) -> None:
    """Store a workflow of a definition, and print its id. Start it with --start, or later."""
    with session.code(application) as app:
        definition = definition_of(app, name)
        chosen = definition if key is None else definition.options(key=key)
        positions, named = values_of(app, definition, arguments or [])
        with defining(name):
            run = chosen.create(*positions, **named)
        if start_it:
            run.start()
        state = run.state
    facts = {"id": run.id, "definition": name, "state": state, "created": run.created}
    if not run.created:
        session.output.remark(f"{run.id} has this key and has not ended, so no other was created")
    elif not start_it:
        session.output.remark(f"start it with headrace workflows start {run.id}")
    session.output.done(run.id, facts)


@command(app, "start")
def start(
    session: Session,
    id: Id,
    names: Annotated[list[str] | None, argument("[JOB...]", "Start these nodes instead of the first ones.")] = None,
) -> None:
    """Start a workflow, or resume one that was stopped.

    Without JOB arguments, the nodes that wait for no other node start.
    """
    with session.acting("start", "workflows", id) as (app, act):
        run = app.workflows.get(id)
        state = _long(session, run, lambda: run.start(*names or ()))
        act.done(f"{id} is {state}", id=id, state=state)


@command(app, "stop")
def stop(session: Session, ids: Ids) -> int:
    """Stop workflows: no further node starts until you start them again."""

    def one(app: Headrace, id: str) -> tuple[str, bool]:
        app.workflows.get(id).stop()
        return "is stopped", True

    return _each(session, ids, one, "stop")


@command(app, "cancel")
def cancel(session: Session, ids: Ids) -> int:
    """Cancel workflows: no further node starts, running nodes stop or are killed."""

    def one(app: Headrace, id: str) -> tuple[str, bool]:
        run = app.workflows.get(id)
        before = run.state
        if before.final:
            return f"had ended already: {before}", False
        state = _long(session, run, run.cancel)
        return ("is cancelled" if state.final else "was asked to stop: jobs of it still run"), True

    return _each(session, ids, one, "cancel")


@command(app, "retry")
def retry(session: Session, ids: Ids) -> int:
    """Run the failed nodes of workflows again, with fresh budgets, and continue from there."""

    def one(app: Headrace, id: str) -> tuple[str, bool]:
        run = app.workflows.get(id)
        state = _long(session, run, run.retry_failed)
        return f"is {state} again" if state == "running" else f"is {state}: start it to go on", True

    return _each(session, ids, one, "retry")


@command(app, "expire")
def expire(
    session: Session,
    id: Id,
    after: Annotated[str, argument("TIME", "Time after its end, such as 2d; never keeps it for ever.")],
) -> None:
    """Set how long a workflow stays after its end; if it has ended, from now on."""
    wanted = None if after == "never" else parse_duration(after)
    with session.acting("expire", "workflows", id) as (app, act):
        run = app.workflows.get(id)
        run.expire(wanted)
        record = run.refresh()
        when = distance(record.lapses_us, time.time()) if record.state.final else f"{after} after its end"
        act.done(f"{id} {'stays for ever' if wanted is None else f'goes {when}'}", id=id, ttl=wanted)


@command(app, "rm")
def rm(session: Session, ids: Ids, yes: Yes = False) -> int:
    """Delete workflows with all their jobs. One that has not ended needs --yes. You cannot undo this."""

    def one(app: Headrace, id: str) -> tuple[str, bool]:
        run = app.workflows.get(id)
        record = run.refresh()
        left = f"{several(record.total - record.done, 'job')} of it to go"
        question = f"{id} is {record.state}, {left}. Remove it for good?"
        if not (record.state.final or yes or (sys.stdin.isatty() and agreed(question))):
            return f"is {record.state}, {left}: --yes removes it nevertheless", False
        _long(session, run, run.delete)
        return "is removed", True

    return _each(session, ids, one, "delete")


def _each(session: Session, ids: list[str], operate: Any, verb: str) -> int:
    def reply(app: Headrace, id: str) -> tuple[str, bool, str, HeadraceError | None]:
        try:
            text, done = operate(app, id)
        except (WorkflowNotFound, StateError) as error:
            return id, False, str(error), error
        return id, done, text, None

    ids = list(dict.fromkeys(ids))
    with session.acting(verb, "workflows", *ids) as (app, act):
        return session.tell_each(act, (reply(app, id) for id in ids))


def _long(session: Session, run: WorkflowRun, verb: Callable[[], Any]) -> Any:
    from headrace.workflows.verbs import READ

    done = count(READ, READ)
    with late_bar(session.output) as tell:
        # What is left is told in chores of unknown size, so the bar knows no end.
        run.on_piece = lambda left: tell(next(done)) if left else None
        return verb()
