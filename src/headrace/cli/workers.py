"""``headrace workers`` and ``headrace health``: who serves the queues now; ``probe.py`` answers for the latter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from headrace.cli.arguments import argument, option
from headrace.cli.commands import command, group
from headrace.cli.output import several, span
from headrace.cli.session import Session
from headrace.model.notation import size
from headrace.model.options import KINDS, TaskKind

if TYPE_CHECKING:
    from headrace.protocol.overviews import RunnerFacts, WorkerFacts

app = group("List, show, resize, quiet and stop the live workers.")

Name = Annotated[str, argument("NAME", "The worker's name or its beginning, HOST:PID, or the process id.")]


@command(app, "list")
def list_(session: Session) -> None:
    """List the workers: where they are, what they serve and run, and when their lease ends."""
    from headrace.admin.documents import worker_document

    with session.view() as app:
        seen = app.overview()
    rows = [
        (w.owner, w.metadata.get("queues", "-"), w.metadata.get("runners", "-"), _running(w), _left(w, seen.now))
        for w in sorted(seen.workers, key=lambda worker: worker.owner)
    ]
    session.output.listing(
        (worker_document(worker, seen.now) for worker in seen.workers),
        ("worker", "queues", "runners", ">running", ">lease left"), rows, keep=("worker", "running", "lease left"),
        empty="no worker serves this server: start one with headrace worker module:app",
    )  # fmt: skip


@command(app, "startup")
def startup(
    session: Session,
    name: Annotated[str | None, argument("[NAME]", "The beginning of a worker's name.")] = None,
) -> None:
    """Show the set-up that runners repeat after each fork, its cost, and what to preload.

    Workers report it with each renewal of their lease: the last seconds may be missing.
    """
    from headrace.cli import profile

    with session.view() as app:
        profile.show(session.output, app.overview().workers, name)


@command(app, "show")
def show(session: Session, name: Name) -> None:
    """Show the runners of one worker: their jobs, waiting jobs, memory, last replacement.

    The state is that of the worker's last heartbeat, some seconds ago. It shows at most 64 runners.
    """
    from headrace.admin.documents import runner_document, worker_document

    with session.view() as app:
        worker, now = app.workers.get(name), app.overview().now
    if session.output.json:
        session.output.document(
            worker_document(worker, now) | {"runner_facts": [runner_document(one, now) for one in worker.runners]}
        )
        return
    rows = [
        (
            one.kind, str(one.place) if one.place >= 0 else "leaves", str(one.pid), one.job or "-", one.task or "-",
            span(max(0, now - one.since) / 1e6) if one.since else "-", f"{max(0, one.holds - 1) + one.waiting:,}",
            f"{one.done:,}", size(one.memory) if one.memory else "-", _replaced(one),
        )
        for one in worker.runners
    ]  # fmt: skip
    columns = ("kind", "place", "pid", "job", "task", ">for", ">backlog", ">done", ">memory", "replaced")
    session.output.table(columns, rows, keep=("pid", "job", "for", "backlog", "done", "memory"), spare="task")
    if not worker.runners:
        session.output.remark(f"{worker.owner} has not reported its runners yet: its next heartbeat does")


@command(app, "stacks")
def stacks(
    session: Session,
    name: Name,
    job: Annotated[str | None, option("--job ID", "Only the runner of this job.")] = None,
) -> None:
    """Show the Python stacks of a worker's runners at this moment, innermost call first.

    It interrupts nothing. While C code holds the interpreter's lock, it shows the main thread's stack: that of the job
    in a process or fork runner. Of coroutines only the one that runs has a stack.
    """
    with session.acting("stacks", "workers", name, view=True) as (app, act):
        found = [one for one in app.workers.stacks(name) if job in (None, one.job)]
        act.reply = f"looked at {several(len(found), 'runner')}"
    if session.output.documents(found):
        return
    for one in found:
        place = f"{one.kind} {one.place}" if one.place >= 0 else f"{one.kind}, leaving"
        session.output.line(f"{place}, pid {one.pid}: {f'{one.task} {one.job}' if one.job else 'idle'}")
        session.output.line((one.text or "  (it did not answer)") + "\n")


@command(app, "scale")
def scale(
    session: Session,
    name: Name,
    count: Annotated[int, argument("N", "Processes, forks, threads or coroutines.")],
    kind: Annotated[
        TaskKind | None, option("--kind KIND", f"Kind of runner: {', '.join(KINDS)}.", "the first it has")
    ] = None,
) -> None:
    """Resize a live worker to N jobs at once, until it ends. Runners that it removes finish their jobs.

    The signals TTIN and TTOU, sent to the worker's process, add and remove one.
    """
    with session.acting("scale", "workers", name, view=True) as (app, act):
        worker = app.workers.scale(name, count, kind)
        told = kind or next(kind for kind in KINDS if kind in worker.sizes)
        act.done(f"told {worker.owner}: {count} at once, of kind {told}", worker=worker.owner, kind=told, size=count)


@command(app, "stop")
def stop(session: Session, name: Name) -> None:
    """Have a live worker claim no more and end, as at a first TERM. Its jobs may finish within its shutdown timeout."""
    with session.acting("stop", "workers", name, view=True) as (app, act):
        worker = app.workers.stop(name)
        act.done(f"told {worker.owner} to stop", worker=worker.owner)


@command(app, "quiet")
def quiet(session: Session, name: Name) -> None:
    """Have a live worker claim no more, finish its jobs and stay until it is stopped, so that you can look at it."""
    with session.acting("quiet", "workers", name, view=True) as (app, act):
        worker = app.workers.quiet(name)
        act.reply = f"told {worker.owner} to claim no more"
    session.output.done(act.reply, {"worker": worker.owner})


def _replaced(one: RunnerFacts) -> str:
    return f"{one.replaced:,}, last: {one.reason}" if one.replaced else "-"


def _running(worker: WorkerFacts) -> str:
    return f"{worker.running:,}" + (", quiet" if worker.quiet else ", draining" if worker.draining else "")


def _left(worker: WorkerFacts, now: int) -> str:
    left = (worker.lease - now) / 1e6
    return span(left) if left > 0 else "over"


def health(
    session: Session,
    worker: Annotated[
        int | None, argument("[PID]", "Process id of one worker. Default: all of this user.", min=1)
    ] = None,
    ready: Annotated[bool, option("--ready", "Also check that it takes jobs.")] = False,
    app: Annotated[str | None, option("--app MODULE:APP", "Only workers that were started with this name.")] = None,
    url: Annotated[str | None, option("--url URL", "Only workers of this server; without user and password.")] = None,
) -> int:
    """Check whether the workers of this user on this machine live; for probes.

    The exit code is 1 if one does not, or if none runs. It imports no application and asks no server. A server that is
    away leaves a worker healthy, but not ready.
    """
    from headrace.cli.probe import probe

    return probe(worker, ready=ready, json=session.output.json, app=app, url=url)
