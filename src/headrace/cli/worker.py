"""``headrace worker``: from a command line to a supervisor that runs."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import unquote, urlsplit

import typer

from headrace.cli.exits import ApplicationFault
from headrace.cli.measures import parse_duration, parse_size, several, span
from headrace.cli.session import Session

if TYPE_CHECKING:
    from headrace.app import Headrace
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
    burst: Annotated[bool, typer.Option("--burst", help="Leave when the queues are empty.")] = False,
    max_jobs: Annotated[int, _count("--max-jobs", "Leave after so many jobs.")] = 0,
    recycle_jobs: Annotated[int, _count("--recycle-jobs", "Replace a runner after so many jobs.")] = 0,
    recycle_memory: Annotated[
        int | None,
        typer.Option(
            "--recycle-memory", parser=parse_size, metavar="SIZE", help="Replace a runner that took more, such as 512M."
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
    log: Annotated[
        Literal["text", "json"] | None,
        typer.Option("--log", metavar="text|json", help="Form of the log.", show_default="text"),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log details.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log warnings and errors only.")] = False,
) -> int:
    """Run jobs, until it is told to stop.

    Only the kinds of runners that the application's tasks use are started. Ctrl-C or TERM lets running jobs finish
    within --grace and hands the rest back; a second one, a second later, stops them at once. The log goes to stderr;
    --json is --log json.
    """
    from headrace.worker.options import WorkerOptions, parse_queues

    given = {"processes": processes, "forks": forks, "threads": threads, "concurrency": concurrency}
    options = WorkerOptions(
        **{name: number for name, number in given.items() if number is not None},
        queues=parse_queues(queues),
        burst=burst,
        max_jobs=max_jobs,
        recycle_jobs=recycle_jobs,
        recycle_memory=recycle_memory or 0,
    )
    settings = session.settings | {"grace": grace, "log": "json" if session.output.json else log}
    app = Session(session.output, settings).code(application)
    level = logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
    return _serve(app, str(application), options, level)


def _serve(app: Headrace, target: str, options: WorkerOptions, level: int) -> int:
    from headrace.cli import logs, preflight
    from headrace.worker.supervisor import Supervisor

    log = logging.getLogger("headrace.worker")
    form: Literal["text", "json"] = "json" if app.settings.log == "json" else "text"
    logs.configure(form, level, _secrets(app.settings.url))
    preflight.check_tasks(app, target, options)
    version = preflight.await_server(app, log.warning)
    _preload(app)
    # What is forked from here must find no connection and no thread: the private server's lock alone stays held.
    app.store.close()
    _warn_of_threads(log)
    facts = _banner(app, target, options, version)
    if form == "json":
        log.info("worker starts", extra=facts)
    elif level < logging.WARNING:
        width = max(map(len, facts))
        print("\n".join(f"  {name:<{width}}  {value}" for name, value in facts.items()), file=sys.stderr, flush=True)
    return Supervisor(app, options).run()


def _preload(app: Headrace) -> None:
    """Run the application's hooks once, so that every runner finds their work done."""
    for hook in app.preload_hooks:
        try:
            hook()
        except Exception as error:
            name = getattr(hook, "__qualname__", repr(hook))
            theirs = error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None)
            trace = "".join(traceback.format_exception(theirs)).rstrip()
            raise ApplicationFault(f"the on_preload hook {name} failed: {error!r}\n\n{trace}") from error


def _warn_of_threads(log: logging.Logger) -> None:
    names = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    if names:
        log.warning(
            "the application started threads while it was imported (%s): runners will not have them, and may hang on "
            "locks that they held; start them in @app.after_fork",
            ", ".join(names),
        )


def _banner(app: Headrace, target: str, options: WorkerOptions, version: str) -> dict[str, str]:
    from headrace import __version__

    return {
        "headrace": f"{__version__}, process {os.getpid()} on {socket.gethostname()}",
        "app": f"{target}, {several(len(app.tasks), 'task')}",
        "server": f"{version} at {app.store.target.shown}",
        "queues": _queues(options.queues),
        "runners": _runners(app, options),
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
