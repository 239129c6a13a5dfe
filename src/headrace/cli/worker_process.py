"""``python -m headrace.cli.worker_process``: the process of a worker, without the command line's parser in its memory.

``headrace worker`` becomes this when it has read its options: what is in memory before a fork is in every runner, and
is paid for at each fork. No person starts it by hand.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from functools import partial
from typing import TYPE_CHECKING

from headrace.cli import logs, preflight
from headrace.cli.failure import explain
from headrace.cli.output import Output, one_line, several, span
from headrace.cli.reloading import Origin
from headrace.cli.session import Session
from headrace.cli.worker_order import Order, instrument_runners
from headrace.errors import HeadraceError
from headrace.registry import left_out
from headrace.settings import SECRET
from headrace.store.url import passwords
from headrace.worker.forking import lifecycle_hooks
from headrace.worker.forking.standard_streams import STREAMS, log
from headrace.worker.health_stamps import HealthStamps
from headrace.worker.preload import warmup
from headrace.worker.supervisor.runner_processes import MetricsAddress, metrics_server, watchers
from headrace.worker.supervisor.supervisor_process import Supervisor

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.worker.forking.lifecycle_hooks import Seen
    from headrace.worker.reload.image_launch import Launch
    from headrace.worker.worker_options import QueueOrder, WorkerOptions


def main() -> int:
    """Be the worker; the exit code."""
    taken = Order.taken(os.environ)
    if taken is None:
        print("headrace: this is a part of headrace worker, which starts it itself", file=sys.stderr)
        return 2
    order, launch = taken
    # Before any other code can take a stream and keep it.
    STREAMS.install()
    try:
        return _obey(order, launch)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last word on every error
        return explain(error, json=order.json, debug=order.debug)


def _obey(order: Order, launch: Launch) -> int:
    origin = Origin.taken(launch)
    session = Session(Output(json=order.json), order.settings)
    with origin.confessing():
        stamps = HealthStamps(0 if origin.heir is None else os.getppid(), str(order.target))
        before = lifecycle_hooks.look()
        app = session.code(order.target)
        if app.settings.url:
            stamps.serves(app.settings.url)
        instrument_runners(app, launch.environ)
        return _serve(app, str(order.target), order.options, order.level, origin, before, stamps)


def _serve(
    app: Headrace, target: str, options: WorkerOptions, level: int, origin: Origin, before: Seen, stamps: HealthStamps
) -> int:
    form, secrets = app.settings.log, _secrets(app)
    logs.configure(form, level, secrets, app.settings.redact.split(","))
    if stamps.fault:
        text = (
            "headrace health cannot see this worker (%s): set TMPDIR to a directory that can be written, or --metrics"
        )
        log.warning(text, stamps.fault, code="health.unseen")
    origin.tell_modules()
    preflight.check_tasks(app, target, options)
    address = preflight.metrics_address(app)
    version = preflight.await_server(app, partial(log.warning, code="store.waiting"))
    stamps.serves(app.store.target.shown)  # also a private server, which has no URL before
    warnings = left_out()
    with contextlib.suppress(HeadraceError):  # a server that is away again, or refuses: which the worker waits for
        warnings += preflight.queue_warnings(app, options.queues.names, app.overview())
        warnings += preflight.cluster_warnings(app)
    # What is forked from here must find no connection and no thread: the private server's lock alone stays held.
    app.disconnect()
    for complaint in warmup.complaints(f"the import of {target}", before):
        # No error: the module is imported by programs, too, where it may be right.
        log.warning("%s", complaint, code="setup.unsafe")
    warmup.warm_up(app)
    metrics = None if address is None else MetricsAddress(*address)
    # A later image takes the address when the one before it gives it up.
    url = metrics.listen() if metrics is not None and origin.heir is None else ""
    sides = [*([] if metrics is None else [metrics_server(metrics, stamps)]), *watchers(app)]
    facts = _banner(app, target, options, version, url)
    if form == "json":
        log.info("worker starts", extra=facts, code="worker.starts")
    elif level < logging.WARNING and origin.announces:
        width = max(map(len, facts))
        lines = (f"  {name:<{width}}  {one_line(value)}" for name, value in facts.items())
        print("\n".join(lines), file=sys.stderr, flush=True)
    for warning in warnings:
        log.warning("%s", warning, code="worker.warning")
    lineage = origin.lineage(app.settings.reload_timeout, form, level, secrets)
    return origin.carry_on(Supervisor(app, options, lineage, sides, stamps).run())


def _banner(app: Headrace, target: str, options: WorkerOptions, version: str, metrics: str) -> dict[str, str]:
    from headrace import __version__

    return {
        "headrace": f"{__version__}, process {os.getpid()} on {socket.gethostname()}",
        "app": f"{target}, {several(len(app.tasks), 'task')}",
        "server": f"{version} at {app.store.target.shown}",
        "queues": _queues(options.queues),
        "runners": _runners(app, options),
        **({"metrics": metrics} if metrics else {}),
        "stop": f"Ctrl-C or TERM: jobs get {span(app.settings.shutdown_timeout)} to finish; again: at once",
    }


def _queues(queues: QueueOrder) -> str:
    if queues.weights:
        pairs = zip(queues.names, queues.weights, strict=True)
        return ", ".join(f"{name} (weight {weight:g})" for name, weight in pairs)
    return ", ".join(queues.names) + (" (in this order)" if len(queues.names) > 1 else "")


def _runners(app: Headrace, options: WorkerOptions) -> str:
    kinds = {task.kind for task in app.tasks.values()}
    words = {
        "process": f"{options.processes} process{'es' * (options.processes != 1)}",
        "fork": f"{several(options.forks, 'fork')} at once",
        "thread": several(options.threads, "thread"),
        "async": several(options.concurrency, "coroutine"),
    }
    return ", ".join(text for kind, text in words.items() if kind in kinds)


def _secrets(app: Headrace) -> set[str]:
    return set[str]().union(*(passwords(getattr(app.settings, name)) for name in SECRET))


if __name__ == "__main__":
    sys.exit(main())
