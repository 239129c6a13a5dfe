"""``headrace enqueue``: a job by the name of its task, from a shell."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

from headrace.cli import queues
from headrace.cli.arguments import (
    Checker,
    Given,
    argument,
    flag,
    option,
    parse_arguments,
    quoting,
    undefined,
    with_flags,
)
from headrace.cli.failure import UsageFault
from headrace.cli.session import Session, close_values
from headrace.model.option_checks import OptionRow
from headrace.model.options import ROWS


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
    import msgspec

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
