"""What a worker makes sure of before it forks: there is something to run, and a server to run it with.

Leaves no connection open: what is forked afterwards must not share one.
"""

from __future__ import annotations

import contextlib
import difflib
import random
import socket
import sys
import time
from collections.abc import Callable, Collection
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from redis import exceptions as driver

from headrace.cli.failure import ApplicationFault, UsageFault
from headrace.cli.output import several
from headrace.errors import OptionsError, ServerError, StoreFull, StoreUnavailable, UnknownLimit
from headrace.model.options import SIZE_FLAGS
from headrace.protocol.keys import SCHEMA
from headrace.protocol.operations import greet
from headrace.registry import left_out
from headrace.stats.stats import kept
from headrace.store.connection import pause_before
from headrace.store.raw_connection import RawConnection
from headrace.store.reach import SILENCE, accepted, examined
from headrace.store.url import Target, located
from headrace.store.verdict import advice, verdict

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.protocol.overviews import Overview
    from headrace.worker.worker_options import WorkerOptions

# One attempt to reach the server, seconds.
PATIENCE = 5.0
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
    except (UnknownLimit, OptionsError) as error:
        raise ApplicationFault(f"{target} cannot be served: {error}") from None


def queue_warnings(app: Headrace, served: Collection[str], seen: Overview) -> list[str]:
    """What of the queues looks like a mistake, for people.

    Args:
        served: the queues of this worker.
        seen: the store as it is before this worker serves it.
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


def cluster_warnings(app: Headrace) -> list[str]:
    """What of a cluster's configuration keeps jobs waiting for longer than it must. Cost: one round trip."""
    target, lease, warnings = app.store.target, app.settings.lease, list[str]()
    if not target.seeds:
        return warnings
    names = ("cluster-require-full-coverage", "cluster-node-timeout")
    with contextlib.suppress(driver.RedisError, OSError), contextlib.closing(RawConnection(target, PATIENCE)) as link:
        slots, *found = link.ask(("CLUSTER", "SLOTS"), *(("CONFIG", "GET", name) for name in names))
        # A server may keep its configuration to itself.
        coverage, timeout = (b"" if isinstance(row, Exception) or not row else row[1] for row in found)
        if coverage == b"yes":
            warnings.append(
                "one node that dies without a replica stops the whole cluster: set cluster-require-full-coverage to no "
                "on each node"
            )
        if timeout and int(timeout) / 1000 > lease / 3:
            warnings.append(
                f"a failover may outlast the lease of {lease:g} s and stop the jobs of its workers: set "
                f"cluster-node-timeout to {lease / 3 * 1000:.0f} at most on each node, not {int(timeout)}"
            )
        if 1 < (primaries := len({owners[0][2] for _, _, *owners in slots})) < 3:
            warnings.append(
                f"the cluster has {primaries} primaries: no replica takes over when half are gone, so have three"
            )
    return warnings


def metrics_address(app: Headrace) -> tuple[str, int] | None:
    """Where Prometheus is to be answered, if at all.

    Raises:
        UsageFault: the setting names no address, or the ``prometheus`` extra is not installed.
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


def await_server(app: Headrace, warn: Callable[[str], None]) -> str:
    """Wait until the server answers, and return its name and version.

    Args:
        warn: told once, when it does not answer at first.

    Raises:
        UrlError, ServerError: it can never be used like this: waiting would not help. A worker waits for a host that no
            name server knows, for a server that loads its data and for one whose disk is full.
    """
    target = located(app.client.url(), app.settings)
    attempt = 0
    while True:
        try:
            # Told after a second what it waits for, then with time for a slow network.
            return _ask(app, target, PATIENCE if attempt else SILENCE, warn)
        except (driver.RedisError, OSError, ServerError) as error:
            trouble = _trouble(error, target)
        attempt += 1
        if attempt == 1:
            warn(f"{trouble} Waiting for it; Ctrl-C stops this")
        time.sleep(pause_before(attempt, random.random()))


def _trouble(error: Exception, target: Target) -> str:
    """What keeps a server from answering that may answer later; raises what says that it never will."""
    word = error if isinstance(error, ServerError) else verdict(error, target, "INFO or SUBSCRIBE")
    if isinstance(word, (StoreUnavailable, StoreFull)):
        return f"{target.shown} does not answer as it should ({word})."
    if isinstance(word, Exception):
        # Never its own cause: who walks along causes would go round in a circle.
        raise word from None if word is error else error
    if _is_unknown_host(error):
        return f"{target.shown} does not answer, since there is no such host: check the name in the URL."
    return f"{target.shown} does not answer ({error}): {advice(error, target)}"


def _ask(app: Headrace, target: Target, patience: float, warn: Callable[[str], None]) -> str:
    keys = app.client.keys
    with contextlib.closing(RawConnection(target, patience)) as connection:
        facts = examined(connection, target, app.settings.allow_eviction)
        # Its dispatcher would register and claim, and then run nothing, since it could not hear of cancellations.
        accepted(connection.ask(("SUBSCRIBE", keys.mail("preflight"))))
    app.store.run(greet(keys, SCHEMA))
    app.store.close()
    _try_to_sleep(target, patience, keys.wake("preflight"), warn)
    return _version(facts)


def _try_to_sleep(target: Target, patience: float, key: str, warn: Callable[[str], None]) -> None:
    """Say which commands with which a worker waits for jobs do not work here; it works without them."""
    for name, *arguments in (("CLIENT ID",), ("CLIENT UNBLOCK", 0), ("BZPOPMIN", key, 0.01)):
        try:
            with contextlib.closing(RawConnection(target, patience)) as connection:
                accepted(connection.ask((*str(name).split(), *arguments)))
        except (driver.RedisError, OSError) as error:
            if not isinstance(verdict(error, target, str(name)), StoreFull):
                warn(
                    f"{target.shown} refuses {name} ({error}): permit it, or idle workers ask for jobs twice a second."
                )


def _version(facts: str) -> str:
    found = dict(line.split(":", 1) for line in facts.splitlines() if ":" in line)
    if "valkey_version" in found:
        return f"Valkey {found['valkey_version']}"
    return f"Redis {found.get('redis_version', 'of an unknown version')}"


def _is_unknown_host(error: BaseException | None) -> bool:
    """Whether no name server knows the host: unlike an outage or a silent name server, that does not pass."""
    while error is not None:
        if isinstance(error, socket.gaierror):
            return error.errno != socket.EAI_AGAIN
        error = error.__cause__ or error.__context__
    return False
