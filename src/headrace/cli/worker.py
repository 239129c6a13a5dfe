"""``headrace worker``: from a command line to an order, which ``image`` carries out."""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated, Any, Literal

from headrace.cli.arguments import argument, option
from headrace.cli.failure import UsageFault
from headrace.cli.session import Session
from headrace.settings import environment_name


def _set(spelling: str, text: str, default: str | bool = True) -> Any:
    """An option that the environment may give, too: ``--max-jobs N`` as HEADRACE_MAX_JOBS."""
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
        bool, option("--reload", "Restart when the application's code changes; for development.")
    ] = False,
    verbose: Annotated[bool, option("--verbose -v", "Log details.")] = False,
    quiet: Annotated[bool, option("--quiet -q", "Log warnings and errors only.")] = False,
) -> int:
    """Run jobs until a signal stops the worker.

    The worker starts only the kinds of runners that the application's tasks use. Ctrl-C or TERM stops it: running jobs
    get --shutdown-timeout to finish, unfinished jobs return to their queues. A second signal, a second later, stops the
    jobs at once, and so does QUIT. HUP reloads the application's code without downtime. The log goes to stderr; --json
    is --log json.
    """
    from headrace.cli import reloading
    from headrace.cli.worker_order import Order, discreet, instrumented, start_again
    from headrace.worker.reload.image_launch import VARIABLE, Launch
    from headrace.worker.worker_options import WorkerOptions, parse_queues

    if 0 < (recycle_memory or 0) < 1 << 20:
        raise UsageFault(f"--recycle-memory means {recycle_memory} bytes, and every runner has more: write 512M")
    taken = Launch.taken(os.environ, sys.orig_argv)
    launch = instrumented(discreet(taken, session.settings["url"]))
    given = {"processes": processes, "forks": forks, "threads": threads, "concurrency": concurrency}
    options = WorkerOptions(
        **{name: number for name, number in given.items() if number is not None},
        queues=parse_queues(queues),
        burst=burst,
        max_jobs=max_jobs,
        max_idle=max_idle or 0.0,
        recycle_jobs=recycle_jobs,
        recycle_memory=recycle_memory or 0,
    )
    form = "json" if session.output.json else log
    settings = session.settings | {
        "shutdown_timeout": shutdown_timeout,
        "log": form,
        "metrics": metrics,
        "preload": preload,
    }
    session = Session(session.output, settings, session.debug)
    level = logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
    if reload and VARIABLE not in os.environ:
        if launch != taken:
            start_again(launch)
        return reloading.reload(session, launch, level)
    order = Order(application, options, session.settings, level, session.output.json, session.debug)
    return order.carry_out(launch)
