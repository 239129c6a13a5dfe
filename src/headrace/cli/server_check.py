"""What a worker asks its server before it forks. Leaves no connection open: what is forked later must not share one."""

from __future__ import annotations

import contextlib
import difflib
import random
import socket
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from redis import exceptions as driver

from headrace.admin.server_sight import sight_of
from headrace.cli.output import several
from headrace.errors import HeadraceError, ServerError, StoreFull, StoreUnavailable
from headrace.model.environment import judged
from headrace.protocol.keys import SCHEMA
from headrace.protocol.operations import greet
from headrace.store.connection import pause_before
from headrace.store.raw_connection import RawConnection
from headrace.store.reach import SILENCE, accepted, examined
from headrace.store.url import Target, located
from headrace.store.verdict import advice, verdict

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.protocol.overviews import Overview

# One attempt to reach the server, seconds.
PATIENCE = 5.0


def check_server(app: Headrace, served: Collection[str], warn: Callable[[str], None]) -> tuple[str, str, list[str]]:
    """Wait for the server, and look at it once; the arguments and errors of :func:`await_server`. Returns its name and
    version, where it is without its password, and what of queues and of a cluster looks like a mistake, for people.
    """
    version, warnings = await_server(app, warn), list[str]()
    with contextlib.suppress(HeadraceError):  # a server that is away again, or refuses: which the worker waits for
        warnings += queue_warnings(app, served, app.overview())
        warnings += sight_warnings(app)
    # What is forked from here must find no connection and no thread: the private server's lock alone stays held.
    app.disconnect()
    return version, app.store.target.shown, warnings


def sight_warnings(app: Headrace) -> list[str]:
    """What of the server and its configuration loses jobs or keeps them waiting: rows of the doctor's table."""
    with contextlib.suppress(driver.RedisError, OSError):
        seen = judged(sight_of(app.store.target, app.settings, PATIENCE, measured=False), worker=True)
        return [f"{one.meaning} ({', '.join(one.evidence)}): {one.command}" for one in seen]
    return []


def await_server(app: Headrace, warn: Callable[[str], None]) -> str:
    """Wait until the server answers, and return its name and version. ``warn``: told each remedy once. Raises
    UrlError, ServerError: it can never be used like this: waiting would not help. A worker waits for a host that no
    name server knows, for a server that loads its data and for one whose disk is full.
    """
    target = located(app.client.url(), app.settings)
    attempt, told = 0, set[str]()
    while True:
        try:
            # Told after a second what it waits for, then with time for a slow network.
            return _ask(app, target, PATIENCE if attempt else SILENCE, warn)
        except (driver.RedisError, OSError, ServerError) as error:
            trouble = _trouble(error, target)
        attempt += 1
        # A server without room may end the connection before its reason is read. Reasons with one remedy are told once.
        if (remedy := trouble.rpartition("): ")[2]) not in told:
            told.add(remedy)
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
    while error is not None:
        if isinstance(error, socket.gaierror):
            return error.errno != socket.EAI_AGAIN
        error = error.__cause__ or error.__context__
    return False


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
