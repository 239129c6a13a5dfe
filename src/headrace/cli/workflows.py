"""``headrace workflows``: create, start and stop them, keep and remove them; ``views`` has what looks at them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any

from headrace.cli import workflow_views
from headrace.cli.arguments import Given, defining, definition_of, values_of
from headrace.cli.commands import command, group
from headrace.cli.confirm import agreed
from headrace.cli.flags import Yes, argument, option
from headrace.cli.session import Session
from headrace.cli.units import distance, parse_duration, several
from headrace.cli.workflow_views import Code, Id

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.errors import HeadraceError
    from headrace.model.workflow import WorkflowRecord
    from headrace.workflows.run import WorkflowRun

Ids = Annotated[list[str], argument("ID...", "Ids of workflows.")]

app = group("Create, start, stop, show, draw and delete workflows.")


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
    """Start a workflow: the nodes that wait for no other, or the named ones; or resume one that was stopped."""
    with session.acting("start", "workflows", id) as (app, act):
        run = app.workflows.get(id)
        state = _long(session, run, lambda: run.start(*names or ()))
        act.reply = f"{id} is {state}"
    session.output.done(act.reply, {"id": id, "state": state})


@command(app, "stop")
def stop(session: Session, ids: Ids) -> int:
    """Stop workflows: no node starts until you start the workflow again; running nodes continue."""

    def one(app: Headrace, id: str) -> tuple[str, bool]:
        app.workflows.get(id).stop()
        return "is stopped", True

    return _each(session, ids, one, "stop")


@command(app, "cancel")
def cancel(session: Session, ids: Ids) -> int:
    """Cancel workflows: no node starts any more; running nodes are asked to stop, then killed after kill_timeout."""

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
        if wanted is None:
            act.reply = f"{id} stays for ever"
        elif record.state.final:
            act.reply = f"{id} goes {distance(record.lapses_us, time.time())}"
        else:
            act.reply = f"{id} goes {after} after its end"
    session.output.done(act.reply, {"id": id, "ttl": wanted})


@command(app, "rm")
def rm(session: Session, ids: Ids, yes: Yes = False) -> int:
    """Delete workflows with all their jobs. One that has not ended needs --yes. You cannot undo this."""

    def one(app: Headrace, id: str) -> tuple[str, bool]:
        run = app.workflows.get(id)
        record = run.refresh()
        if not (record.state.final or yes or _agreed(record)):
            return f"is {record.state}, {_open(record)}: --yes removes it nevertheless", False
        _long(session, run, run.delete)
        return "is removed", True

    return _each(session, ids, one, "delete")


def _each(session: Session, ids: list[str], operate: Any, verb: str) -> int:
    """Do one thing to each workflow, as one act; one that refuses does not keep the others from it."""
    from headrace.errors import WorkflowNotFound, WorkflowStateError

    def reply(app: Headrace, id: str) -> tuple[str, bool, str, HeadraceError | None]:
        try:
            text, done = operate(app, id)
        except (WorkflowNotFound, WorkflowStateError) as error:
            return id, False, str(error), error
        return id, done, text, None

    ids = list(dict.fromkeys(ids))
    with session.acting(verb, "workflows", *ids) as (app, act):
        return session.tell_each(act, (reply(app, id) for id in ids))


def _open(record: WorkflowRecord) -> str:
    return f"{several(record.total - record.done, 'job')} of it to go"


def _agreed(record: WorkflowRecord) -> bool:
    """Whether a person at the terminal wants to delete a workflow that has not ended."""
    if not sys.stdin.isatty():
        return False
    return agreed(f"{record.id} is {record.state}, {_open(record)}. Remove it for good?")


def _long(session: Session, run: WorkflowRun, verb: Callable[[], Any]) -> Any:
    """Do what may go from node to node, beside a bar when it takes its time."""
    from headrace.cli.progress import late_bar
    from headrace.workflows.verbs import READ

    done = count(READ, READ)
    with late_bar(session.output) as tell:
        # What is left is told in chores of unknown size, so the bar knows no end.
        run.on_piece = lambda left: tell(next(done)) if left else None
        return verb()


command(app, "show")(workflow_views.show)
command(app, "list")(workflow_views.list_)
command(app, "viz")(workflow_views.viz)
