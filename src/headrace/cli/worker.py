"""``headrace worker``: from a command line to an order, which ``worker_process`` carries out, or to a parent."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec.structs import replace

from headrace.cli.arguments import argument, option
from headrace.cli.session import ExitCode, Session, UsageFault
from headrace.settings import environment_name

if TYPE_CHECKING:
    from headrace.worker.reload_parent import WorkerCommand


def _set(spelling: str, text: str, default: str | bool = True) -> Any:
    name = spelling.split(maxsplit=1)[0].removeprefix("--").replace("-", "_")
    return option(spelling, text, default, envvar=environment_name(name))


def worker(
    session: Session,
    application: Annotated[
        str | None, argument("MODULE:APP", "The application, such as tasks:app.", envvar="HEADRACE_APP")
    ] = None,
    processes: Annotated[int | None, _set("--processes N", "Process runners.", "one per usable core")] = None,
    forks: Annotated[int | None, _set("--forks N", "Jobs at once that run in a new process each.", "2")] = None,
    threads: Annotated[int | None, _set("--threads N", "Threads.", "16")] = None,
    concurrency: Annotated[int | None, _set("--concurrency N", "Coroutines at once.", "100")] = None,
    queues: Annotated[
        str, _set("--queues NAMES", "The queues to serve, in this order, or by weight: high:3,low:1.")
    ] = "default",
    burst: Annotated[bool, option("--burst", "Exit when the queues are empty.")] = False,
    max_jobs: Annotated[int, _set("--max-jobs N", "Exit after N jobs.", False)] = 0,
    max_idle: Annotated[float | None, _set("--max-idle TIME", "Exit after TIME without a job to run.")] = None,
    recycle_jobs: Annotated[int, _set("--recycle-jobs N", "Replace a runner after N jobs.", False)] = 0,
    recycle_memory: Annotated[
        int | None, _set("--recycle-memory SIZE", "Replace a runner whose memory exceeds SIZE, such as 512M.")
    ] = None,
    preload: Annotated[
        str | None, option("--preload NAMES", "Modules to import and module:functions to call before forking.")
    ] = None,
    shutdown_timeout: Annotated[
        float | None,
        option("--shutdown-timeout TIME", "Time that running jobs get to finish when the worker stops.", "25s"),
    ] = None,
    metrics: Annotated[
        str | None,
        option(
            "--metrics ADDRESS",
            "Serve metrics and probes over HTTP there: a port on this machine, or ADDRESS:PORT. Port 0: any.",
            "nowhere",
        ),
    ] = None,
    log: Annotated[Literal["text", "json"] | None, option("--log text|json", "Format of the log.", "text")] = None,
    reload: Annotated[
        Literal["files", "hup"] | None,
        option(
            "--reload [=files|hup]", "Replace the worker by one with new code when a file changes, or on HUP.", False
        ),
    ] = None,
    verbose: Annotated[bool, option("--verbose -v", "Log details.")] = False,
    quiet: Annotated[bool, option("--quiet -q", "Log warnings and errors only.")] = False,
) -> int:
    """Run jobs until a signal stops the worker.

    The worker starts only the kinds of runners that the application's tasks use. Ctrl-C or TERM stops it: running jobs
    get --shutdown-timeout to finish, unfinished jobs return to their queues. A second signal, a second later, stops the
    jobs at once, and so does QUIT. The log goes to stderr; --json is --log json.

    With --reload the worker has a parent process, which starts a worker with new code, then stops the old one.
    --reload, for development, does so when a .py file below the directory changes; running jobs run again with the new
    code.
    --reload=hup does so on HUP; running jobs get --shutdown-timeout to finish.
    """
    from headrace.cli.worker_order import Order, discreet, instrumented, start_again
    from headrace.worker.reload_parent import VARIABLE, WorkerCommand
    from headrace.worker.worker_options import WorkerOptions, parse_queues

    if 0 < (recycle_memory or 0) < 1 << 20:
        raise UsageFault(f"--recycle-memory means {recycle_memory} bytes, and every runner has more: write 512M")
    given_command = WorkerCommand.of_process(os.environ, sys.orig_argv)
    command = instrumented(discreet(given_command, session.settings["url"]))
    given: dict[str, Any] = {"processes": processes, "forks": forks, "threads": threads, "concurrency": concurrency}
    options = WorkerOptions(
        **{name: number for name, number in given.items() if number is not None}, queues=parse_queues(queues),
        burst=burst, max_jobs=max_jobs, max_idle=max_idle or 0.0, recycle_jobs=recycle_jobs,
        recycle_memory=recycle_memory or 0,
    )  # fmt: skip
    form = "json" if session.output.json else log
    more = {"shutdown_timeout": shutdown_timeout, "log": form, "metrics": metrics, "preload": preload}
    session = Session(session.output, session.settings | more, session.debug)
    level = logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
    if reload is not None and VARIABLE not in os.environ:
        if command != given_command:
            start_again(command)
        return _be_parent(session, command, level, watch=reload == "files")
    order = Order(application, options, session.settings, level, session.output.json, session.debug)
    return order.carry_out(command.environ)


def _be_parent(session: Session, command: WorkerCommand, level: int, *, watch: bool) -> int:
    from headrace.cli import logs
    from headrace.worker.reload_parent import ReloadParent, SourceFiles

    settings = session.app().settings
    logs.configure(settings.log, level)
    environ = dict(command.environ)
    if session.settings.get("log") is None:
        environ[environment_name("log")] = settings.log
    if watch:
        # A person who edits wants the new code now: running jobs are handed back and run again with that.
        if session.settings.get("shutdown_timeout") is None:
            environ.setdefault(environment_name("shutdown_timeout"), "0")
        # Python takes a compiled file for fresh that was made within the second, of a source of the same size.
        environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    sources = SourceFiles(command.directory) if watch else None
    command = replace(command, environ=environ)
    return ReloadParent(command, settings.reload_timeout, sources, {ExitCode.SERVER}).run()
