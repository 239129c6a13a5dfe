"""``headrace workflows show``, ``list`` and ``viz``: look at one, at many, at a picture."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Literal

from headrace.cli.arguments import defining, definition_of, values_of
from headrace.cli.exit_codes import OperationFault, UsageFault
from headrace.cli.flags import argument, option
from headrace.cli.session import Session
from headrace.cli.units import parse_moment, several
from headrace.model.job import State

StateName = Literal["pending", "running", "stopped", "succeeded", "failed", "cancelled"]

Id = Annotated[str, argument("ID", "The workflow's id.")]
Code = Annotated[str | None, option("--app MODULE:APP", "The application that defines it.", envvar="HEADRACE_APP")]


def show(
    session: Session,
    id: Id,
    skip_overview: Annotated[bool, option("--skip-overview", "Only the jobs.")] = False,
    skip_jobs: Annotated[bool, option("--skip-jobs", "Only the overview; reads no job.")] = False,
    jobs: Annotated[State | None, option("--jobs STATE", "Only jobs in one state.")] = None,
    limit: Annotated[int, option("--limit N", "Maximum number of jobs.", min=1)] = 100,
) -> None:
    """Show a workflow: its progress and its jobs: failed ones first, then running, waiting and ended ones."""
    from headrace.admin.documents import node_document, workflow_details
    from headrace.cli import workflow_output
    from headrace.cli.queues import tell_unserved

    if skip_overview and skip_jobs:
        raise UsageFault("--skip-overview and --skip-jobs together leave nothing to show: take one")
    with session.view(hide=True) as app:
        run = app.workflows.get(id)
        record = run.refresh()
        nodes = [] if skip_jobs else workflow_output.read(session.output, run, jobs)
        ready = {node.job.queue for node in nodes if node.job.state in ("ready", "parked")}
        seen = app.overview() if ready and not session.output.json else None
    # What waits for others and runs nothing is no job.
    found = [node for node in workflow_output.ordered(nodes) if node.role not in ("join", "pass")]
    shown = found[:limit]
    if session.output.json:
        facts = {} if skip_overview else workflow_details(record)
        session.output.document(facts if skip_jobs else facts | {"jobs": [node_document(node) for node in shown]})
        return
    now = time.time()
    if not skip_overview:
        session.output.facts(workflow_output.overview(record, nodes if jobs is None else [], now))
    if not skip_jobs:
        workflow_output.tables(session.output, shown, now)
        if not found:
            session.output.remark(f"no job of it is {jobs}" if jobs else "no job of it is stored")
        elif len(found) > limit:
            session.output.remark(f"{len(found) - limit:,} more: --limit, or --jobs STATE")
    if seen is not None:
        tell_unserved(session.output, seen, sorted(ready))


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
    """List workflows by their creation, a page at a time; the cost does not grow with the number of workflows.

    As JSON, one line a workflow, then one with the cursor of the next page if there is one.
    """
    from headrace.admin.documents import workflow_summary
    from headrace.cli import workflow_output

    query: dict[str, Any] = {
        "state": state, "definition": definition, "limit": limit, "order": order, "since": since, "until": until,
    }  # fmt: skip
    with session.view(hide=True) as app:
        page = app.workflows.page(after=after, offset=offset, **query)
        records = list(page)
        while whole and page.next is not None:
            page = app.workflows.page(after=page.next, **query)
            records += page
    if session.output.documents(map(workflow_summary, records), page.next):
        return
    now = time.time()
    columns = ("id", "definition", "state", ">jobs", ">done", "created", "remark")
    session.output.table(
        columns,
        [workflow_output.row(record, now) for record in records],
        keep=("id", "state", "created"),
        spare="remark",
    )
    session.output.remark(f"{len(records):,} of {several(page.count, 'workflow')}" if records else "no workflow here")
    if page.next is not None:
        session.output.remark(f"more: --after '{page.next}'")


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
    from headrace.cli import workflow_output
    from headrace.model.ids import is_flow
    from headrace.picture import form_of, of_graph, of_nodes, render

    form = "text" if output is None else form_of(output)
    if is_flow(name):
        with session.view(hide=True) as app:
            run = app.workflows.get(name)
            view = of_nodes(f"{run.definition} {run.id}", workflow_output.read(session.output, run, None))
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
