"""``headrace worker``: from a command line to a supervisor that runs."""

from __future__ import annotations

import logging
import os
import socket
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import unquote, urlsplit

import typer

from headrace.cli.measures import parse_duration, parse_size, several, span
from headrace.cli.session import Session

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.cli.rolling import Origin
    from headrace.worker.leftovers import Seen
    from headrace.worker.options import QueueOrder, WorkerOptions

SHARED = ("url", "namespace", "dir", "json", "debug")


def _count(flag: str, text: str, default: str | bool = False) -> Any:
    return typer.Option(flag, metavar="N", help=text, show_default=default)


def worker(
    session: Session,
    application: Annotated[
        str | None,
        typer.Argument(metavar="MODULE:APP", envvar="HEADRACE_APP", help="The application, such as tasks:app."),
    ] = None,
    processes: Annotated[int | None, _count("--processes", "Process runners.", "one per core")] = None,
    forks: Annotated[int | None, _count("--forks", "Jobs at once that get a fresh process each.", "2")] = None,
    threads: Annotated[int | None, _count("--threads", "Threads.", "16")] = None,
    concurrency: Annotated[int | None, _count("--concurrency", "Coroutines at once.", "100")] = None,
    queues: Annotated[
        str, typer.Option("--queues", metavar="NAMES", help="In this order, or by weight: high:3,low:1.")
    ] = "default",
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="Which runner gets a job: available, least_loaded, round_robin, random, hash.",
        ),
    ] = "available",
    burst: Annotated[bool, typer.Option("--burst", help="Leave when the queues are empty.")] = False,
    max_jobs: Annotated[int, _count("--max-jobs", "Leave after so many jobs.")] = 0,
    max_idle: Annotated[
        float | None,
        typer.Option(
            "--max-idle", parser=parse_duration, metavar="TIME", help="Leave when there was nothing to run for so long."
        ),
    ] = None,
    recycle_jobs: Annotated[int, _count("--recycle-jobs", "Replace a runner after so many jobs.")] = 0,
    recycle_memory: Annotated[
        int | None,
        typer.Option(
            "--recycle-memory", parser=parse_size, metavar="SIZE", help="Replace a runner that took more, such as 512M."
        ),
    ] = None,
    preload: Annotated[
        str | None,
        typer.Option(
            "--preload", metavar="NAMES", help="Modules, module:functions or auto: done once, before forking."
        ),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            "--grace",
            parser=parse_duration,
            metavar="TIME",
            help="How long a stop lets jobs finish.",
            show_default="25s",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="ADDRESS",
            help="Answer Prometheus there: a port of this machine's own, or ADDRESS:PORT. Port 0: any.",
            show_default="nowhere",
        ),
    ] = None,
    log: Annotated[
        Literal["text", "json"] | None,
        typer.Option("--log", metavar="text|json", help="Form of the log.", show_default="text"),
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart when the application's code changes; for development.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log details.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log warnings and errors only.")] = False,
) -> int:
    """Run jobs, until it is told to stop.

    Only the kinds of runners that the application's tasks use are started. Ctrl-C or TERM lets running jobs finish
    within --grace and hands the rest back; a second one, a second later, stops them at once. HUP starts the
    application's code of that time beside what runs, and lets it take over. The log goes to stderr; --json is
    --log json.
    """
    from headrace.cli import rolling
    from headrace.worker import leftovers
    from headrace.worker.options import WorkerOptions, parse_queues

    origin = rolling.Origin.taken()

    given = {"processes": processes, "forks": forks, "threads": threads, "concurrency": concurrency}
    options = WorkerOptions(
        **{name: number for name, number in given.items() if number is not None},
        queues=parse_queues(queues),
        strategy=strategy,
        burst=burst,
        max_jobs=max_jobs,
        max_idle=max_idle or 0.0,
        recycle_jobs=recycle_jobs,
        recycle_memory=recycle_memory or 0,
    )
    form = "json" if session.output.json else log
    settings = session.settings | {"grace": grace, "log": form, "metrics": metrics, "preload": preload}
    session = Session(session.output, settings)
    level = logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
    if reload and origin.heir is None:
        return rolling.reload(session, origin, level)
    with origin.confessing():
        before = leftovers.look()
        return _serve(session.code(application), str(application), options, level, origin, before)


def _serve(app: Headrace, target: str, options: WorkerOptions, level: int, origin: Origin, before: Seen) -> int:
    from headrace.cli import logs, preflight
    from headrace.worker import warmup
    from headrace.worker.metrics import Metrics
    from headrace.worker.supervisor import Supervisor

    log = logging.getLogger("headrace.worker")
    form: Literal["text", "json"] = "json" if app.settings.log == "json" else "text"
    secrets = _secrets(app.settings.url)
    logs.configure(form, level, secrets)
    origin.tell_modules()
    preflight.check_tasks(app, target, options)
    address = preflight.metrics_address(app.settings.metrics)
    version = preflight.await_server(app, log.warning)
    # What is forked from here must find no connection and no thread: the private server's lock alone stays held.
    app.disconnect()
    for complaint in warmup.complaints(f"the import of {target}", before):
        # No error: the module is imported by programs, too, where it may be right.
        log.warning(complaint)
    warmup.warm_up(app)
    metrics = None if address is None else Metrics(*address)
    # A later image takes the address when the one before it gives it up.
    url = metrics.listen() if metrics is not None and origin.heir is None else ""
    facts = _banner(app, target, options, version, url)
    if form == "json":
        log.info("worker starts", extra=facts)
    elif level < logging.WARNING and origin.announces:
        width = max(map(len, facts))
        print("\n".join(f"  {name:<{width}}  {value}" for name, value in facts.items()), file=sys.stderr, flush=True)
    lineage = origin.lineage(app.settings.warm_limit, form, level, secrets)
    return origin.carry_on(Supervisor(app, options, lineage, metrics).run())


def _banner(app: Headrace, target: str, options: WorkerOptions, version: str, metrics: str) -> dict[str, str]:
    from headrace import __version__

    return {
        "headrace": f"{__version__}, process {os.getpid()} on {socket.gethostname()}",
        "app": f"{target}, {several(len(app.tasks), 'task')}",
        "server": f"{version} at {app.store.target.shown}",
        "queues": _queues(options.queues),
        "runners": _runners(app, options),
        **({"metrics": metrics} if metrics else {}),
        "stop": f"Ctrl-C or TERM: jobs get {span(app.settings.grace)} to finish; again: at once",
    }


def _queues(queues: QueueOrder) -> str:
    if queues.weights:
        pairs = zip(queues.names, queues.weights, strict=True)
        return ", ".join(f"{name} (weight {weight:g})" for name, weight in pairs)
    return ", ".join(queues.names) + (" (in this order)" if len(queues.names) > 1 else "")


def _runners(app: Headrace, options: WorkerOptions) -> str:
    kinds = {task.kind for task in app.tasks.values()}
    words = {
        "process": f"{options.processes} processes",
        "fork": f"{options.forks} forks at once",
        "thread": f"{options.threads} threads",
        "async": f"{options.concurrency} coroutines",
    }
    return ", ".join(text for kind, text in words.items() if kind in kinds)


def _secrets(url: str | None) -> set[str]:
    password = urlsplit(url).password if url else None
    return {password, unquote(password)} if password else set()
