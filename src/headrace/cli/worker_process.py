"""``python -m headrace.cli.worker_process``: the process of a worker, without the command line's parser in its memory.

``headrace worker`` becomes this when it has read its options: what is in memory before a fork is in every runner, and
is paid for at each fork. No person starts it by hand.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Generator
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from headrace import __version__
from headrace.cli import logs
from headrace.cli.output import Output, one_line, several, span
from headrace.cli.session import ApplicationFault, ExitCode, Session, UsageFault, exit_of, explain
from headrace.cli.worker_order import Order, instrument_runners
from headrace.errors import NotFound, OptionsError
from headrace.model.options import SIZE_FLAGS
from headrace.registry import unused_set_warnings
from headrace.settings import SECRET
from headrace.stats.stats import kept
from headrace.store.url import passwords
from headrace.worker import child_process, warmup
from headrace.worker.child_process import Terminal, in_child
from headrace.worker.health_stamps import HealthStamps
from headrace.worker.messages import StartFailed
from headrace.worker.runner.process_kind import small
from headrace.worker.runner_processes import MetricsServer
from headrace.worker.standard_streams import STREAMS, log
from headrace.worker.supervisor import ParentLink, Supervisor

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.worker.warmup import Seen
    from headrace.worker.worker_options import QueueOrder, WorkerOptions


def main() -> int:
    order = Order.take_from(os.environ)
    if order is None:
        print("headrace: this is a part of headrace worker, which starts it itself", file=sys.stderr)
        return 2
    # Before any other code can take a stream and keep it.
    STREAMS.install()
    try:
        return _obey(order)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last word on every error
        return explain(error, json=order.json, debug=order.debug)


def _obey(order: Order) -> int:
    parent, terminal = ParentLink.take_from(os.environ), Terminal.of_process()
    # Signals for runners, which do not exist yet, must neither end nor suspend this process.
    for number in (signal.SIGHUP, *child_process.RESIZE):
        signal.signal(number, child_process.only_wake)
    child_process.disregard()
    # QUIT too, which would leave a core.
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, child_process.leave_at_once)
    child_process.let_in()
    session = Session(Output(json=order.json), order.settings)
    with _reporting(parent):
        stamps = HealthStamps(str(order.target), "" if parent is None else parent.health)
        try:
            before = warmup.read_state()
            app = session.code(order.target)
            if app.settings.url:
                stamps.write_bare_url(app.client.url())
            if order.instrumented:
                instrument_runners(app)
            return _serve(app, order, before, stamps, parent, terminal)
        finally:
            stamps.end()


@contextlib.contextmanager
def _reporting(parent: ParentLink | None) -> Generator[None]:
    try:
        yield
    except Exception as error:
        if parent is None:
            raise
        code = exit_of(error)
        parent.send(StartFailed(traceback.format_exc().rstrip() if code is ExitCode.INTERNAL else str(error)))
        raise SystemExit(int(code)) from error


def _serve(
    app: Headrace, order: Order, before: Seen, stamps: HealthStamps, parent: ParentLink | None, terminal: Terminal
) -> int:
    target, options, level = str(order.target), order.options, order.level
    form, secrets = app.settings.log, _secrets(app)
    logs.configure(form, level, secrets, app.settings.redact.split(","))
    if stamps.fault:
        text = (
            "headrace health cannot see this worker (%s): set TMPDIR to a directory that can be written, or --metrics"
        )
        log.warning(text, stamps.fault, code="health.unseen")
    check_tasks(app, target, options)
    address = metrics_address(app)
    version, shown, warnings = _checked_server(app, options)
    stamps.write_bare_url(shown)  # also a private server, which has no URL before
    for complaint in warmup.complaints(f"the import of {target}", before):
        # No error: the module is imported by programs, too, where it may be right.
        log.warning("%s", complaint, code="setup.unsafe")
    warmup.warm_up(app)
    metrics = None if address is None else MetricsServer(*address, stamps)
    # The worker before this one may still have the address: then it is taken when that is free.
    url = metrics.listen() if metrics is not None and (parent is None or parent.first) else ""
    facts = _banner(app, target, options, f"{version} at {shown}", url)
    if form == "json":
        log.info("worker starts", extra=facts, code="worker.starts")
    elif level < logging.WARNING and (parent is None or parent.first):
        width = max(map(len, facts))
        lines = (f"  {name:<{width}}  {one_line(value)}" for name, value in facts.items())
        print("\n".join(lines), file=sys.stderr, flush=True)
    for warning in [*unused_set_warnings(), *warnings]:
        log.warning("%s", warning, code="worker.warning")
    return Supervisor(app, options, parent, metrics, stamps, terminal).run()


# Modules that replace Python's own calls, the function of each that tells so, and how an application asks for it.
_PATCHERS = (
    ("gevent.monkey", "is_module_patched", "gevent.monkey.patch_all()"),
    ("eventlet.patcher", "is_monkey_patched", "eventlet.monkey_patch()"),
)


def check_tasks(app: Headrace, target: str, options: WorkerOptions) -> None:
    """Every task has a kind of runner here.

    Raises:
        ApplicationFault: there is no task at all, or one has limits that it cannot have; or gevent or eventlet has
            taken the place of Python's own calls, with which the worker's processes wait.
        SettingsError: the setting ``stats_keep`` cannot be read.
        UsageFault: a task's kind has no runner.
    """
    for module, asked, call in _PATCHERS:
        patcher: Any = sys.modules.get(module)
        if patcher is not None and getattr(patcher, asked)("socket"):
            raise ApplicationFault(
                f"{target} calls {call}, after which a worker's processes wait for ever: leave it out where workers "
                f"import it; --threads and coroutines run many jobs at once"
            )
    kept(app.settings)
    if not app.tasks:
        module = target.partition(":")[0]
        advice = "; ".join(unused_set_warnings()) or (
            f"put @app.task above a function, and import the module that holds it in {module}, or include its Tasks "
            f"there with app.include(...)"
        )
        raise ApplicationFault(f"{target} has no task, so there is nothing to run: {advice}")
    for task in app.tasks.values():
        if not options.runners(task.kind):
            raise UsageFault(
                f"the task {task.name} is of the kind {task.kind}, and this worker has {SIZE_FLAGS[task.kind]} 0: "
                f"give it 1 at least, or the task another kind"
            )
    try:
        app.limits.declared()
    except (NotFound, OptionsError) as error:
        raise ApplicationFault(f"{target} cannot be served: {error}") from None


def metrics_address(app: Headrace) -> tuple[str, int] | None:
    """Where Prometheus is answered, if at all. Raises UsageFault: no such address, or an extra is not installed."""
    if app.settings.metrics is None:
        return None
    from headrace.stats.prometheus import address_of

    if find_spec("prometheus_client") is None:
        raise UsageFault("--metrics needs prometheus-client: pip install 'headrace[prometheus]'")
    try:
        return address_of(app.settings.metrics)
    except OptionsError as error:
        raise UsageFault(f"{error} (from {app.sources.get('metrics', 'settings')})") from error


def _checked_server(app: Headrace, options: WorkerOptions) -> tuple[str, str, list[str]]:
    def ask() -> tuple[str, str, list[str]]:
        from headrace.cli.server_check import check_server

        return check_server(app, options.queues.names, partial(log.warning, code="store.waiting"))

    if not small(app):
        return ask()
    # A private server is held by this process.
    app.client.url()
    return in_child(ask)


def _banner(app: Headrace, target: str, options: WorkerOptions, server: str, metrics: str) -> dict[str, str]:
    return {
        "headrace": f"{__version__}, process {os.getpid()} on {socket.gethostname()}",
        "app": f"{target}, {several(len(app.tasks), 'task')}",
        "server": server,
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
