"""What a worker makes sure of before it forks. Imports no driver, which a small image for forks has not."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.cli.output import several
from headrace.cli.session import ApplicationFault, UsageFault
from headrace.errors import NotFound, OptionsError
from headrace.model.options import SIZE_FLAGS
from headrace.registry import left_out
from headrace.stats.stats import kept

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.protocol.overviews import Overview
    from headrace.worker.worker_options import WorkerOptions

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
        advice = "; ".join(left_out()) or (
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


def queue_warnings(app: Headrace, served: Collection[str], seen: Overview) -> list[str]:
    """What of the queues looks like a mistake, for people. ``served``: the queues of this worker. ``seen``: the store
    as it is before this worker serves it.
    """
    others, warnings = seen.served, list[str]()
    wanted: dict[str, list[str]] = {}
    for task in app.tasks.values():
        # Of a workflow that is a node of another one: whether it ever is, is not known yet.
        if task.name.removeprefix("workflow:") not in app.workflow_definitions:
            wanted.setdefault(task.defaults.queue, []).append(task.name)
    for name, tasks in wanted.items():
        if name not in served and not others[name]:
            jobs = f"{tasks[0]} and {several(len(tasks) - 1, 'other task')}" if len(tasks) > 1 else tasks[0]
            warnings.append(
                f"no worker serves queue {name}, where jobs of {jobs} go; those of this worker are "
                f"{', '.join(served)}: add {name} to its --queues, or start another worker for it"
            )
    known = {*wanted, *seen.names}
    for name in served:
        near = difflib.get_close_matches(name, known.difference(served), 1, 0.75)
        if name not in known and near:
            warnings.append(f"this worker serves queue {name}, which is new: did you mean {near[0]}?")
    return warnings


class ServerCheck(msgspec.Struct, frozen=True):
    """What a worker is told of its server.

    Attributes:
        version: its name and version.
        shown: where it is, without its password.
        warnings: what of queues and of a cluster looks like a mistake, for people.
    """

    version: str
    shown: str
    warnings: list[str]


def metrics_address(app: Headrace) -> tuple[str, int] | None:
    """Where Prometheus is to be answered, if at all. Raises UsageFault: the setting names no address, or the
    ``prometheus`` extra is not installed.
    """
    if app.settings.metrics is None:
        return None
    from headrace.stats.prometheus import address_of

    if find_spec("prometheus_client") is None:
        raise UsageFault("--metrics needs prometheus-client: pip install 'headrace[prometheus]'")
    try:
        return address_of(app.settings.metrics)
    except OptionsError as error:
        raise UsageFault(f"{error} (from {app.sources.get('metrics', 'settings')})") from error
