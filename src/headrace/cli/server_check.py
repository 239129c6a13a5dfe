"""What the doctor and a worker's preflight ask a server. Leaves no connection open: a fork must not share one."""

from __future__ import annotations

import contextlib
import difflib
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis import exceptions as driver
from redis.crc import key_slot

from headrace.cli.output import several
from headrace.errors import HeadraceError, ServerError, StoreFull, StoreUnavailable
from headrace.model.environment import Sight, fields, judged
from headrace.protocol.durability import durability
from headrace.protocol.keys import SCHEMA, Keys
from headrace.protocol.operations import greet
from headrace.protocol.script import text_of
from headrace.settings import Settings
from headrace.store.connection import pause_before
from headrace.store.raw_connection import RawConnection
from headrace.store.reach import SILENCE, accepted, examined
from headrace.store.url import Target, located
from headrace.store.verdict import advice, verdict

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.protocol.overviews import Overview

PATIENCE = 5.0  # one attempt to reach the server, seconds


def check_server(app: Headrace, served: Collection[str], warn: Callable[[str], None]) -> tuple[str, str, list[str]]:
    """Wait as :func:`await_server`, and look once: name and version, place without a password, warnings for people."""
    version, warnings = await_server(app, warn), list[str]()
    with contextlib.suppress(HeadraceError):  # a server that is away again, or refuses: which the worker waits for
        warnings += queue_warnings(app, served, app.overview())
        warnings += server_warnings(app)
    # What is forked from here must find no connection and no thread: the private server's lock alone stays held.
    app.disconnect()
    return version, app.store.target.shown, warnings


def server_warnings(app: Headrace) -> list[str]:
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
    found = fields(facts)
    if "valkey_version" in found:
        return f"Valkey {found['valkey_version']}"
    return f"Redis {found.get('redis_version', 'of an unknown version')}"


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


def _is_unknown_host(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, socket.gaierror):
            return error.errno != socket.EAI_AGAIN
        error = error.__cause__ or error.__context__
    return False


def queue_warnings(app: Headrace, served: Collection[str], seen: Overview) -> list[str]:
    """What of the queues looks like a mistake. ``served``: by this worker, which ``seen`` does not show yet."""
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


# Round trips of one measurement at most; the better of two counts, since a busy moment is not a slow network.
TRIPS = 50
_LOCAL = ("localhost", "127.0.0.1", "::1", "")


def sight_of(
    target: Target, settings: Settings, patience: float, *,
    shards: Sequence[tuple[str, Keys]] = (), measured: bool = True,
) -> Sight:  # fmt: skip
    """Ask a server what it says of itself; what it refuses to tell is None. Cost: one connection, two round trips, and
    at most a hundred more where those are measured. Raises redis.exceptions.RedisError, OSError: it did not answer, or
    refuses INFO.

    Args:
        patience: seconds that one reply may take.
        shards: URL and keys of each shard.
        measured: measure the time of round trips, too.
    """
    with contextlib.closing(RawConnection(target, patience)) as link:
        began = time.time()
        clock, info, config, state, slots, slow, user = link.ask(
            ("TIME",), ("INFO",), ("CONFIG", "GET", "*"), ("CLUSTER", "INFO"), ("CLUSTER", "SLOTS"),
            ("SLOWLOG", "GET", 128), ("ACL", "WHOAMI"),
        )  # fmt: skip
        ended, (text,) = time.time(), accepted([info])
        trip = min(_p99(link), _p99(link)) if measured else None
    wanted, host = durability(settings), str(target.options.get("host", ""))
    remote = bool(target.sentinels or target.seeds) or host not in _LOCAL
    told = fields(text) | ({} if remote else _kernel())
    if not remote:
        told |= _swapped(told.get("process_id", ""))
    return Sight(
        told,
        config=None
        if _refused(config)
        else {text_of(config[n]): text_of(config[n + 1]) for n in range(0, len(config), 2)},
        cluster=_cluster(state, slots) if target.seeds else None,
        lease=settings.lease,
        fsync=wanted.fsync,
        replicas=wanted.replicas,
        connections=settings.max_connections,
        skew=None if _refused(clock) else _apart(int(clock[0]) + int(clock[1]) / 1e6, began, ended),
        trip=trip,
        slow=None if _refused(slow) else sum(_is_ours(entry, settings.namespace) for entry in slow),
        remote=remote,
        tls=target.tls,
        user="" if _refused(user) else text_of(user),
        allow_eviction=settings.allow_eviction,
        shares=_shards_of_each_node(slots, shards) if target.seeds else [*Counter(url for url, _ in shards).values()],
    )


def _refused(reply: Any) -> bool:
    return isinstance(reply, driver.RedisError) or (not reply and reply != [])


def _apart(server: float, began: float, ended: float) -> float:
    """Seconds by which two clocks differ at least: the server read its own at a time between these."""
    return max(0.0, began - server, server - ended)


def _p99(link: RawConnection) -> float:
    times: list[float] = []
    # A server that is far away or loads is not asked fifty times.
    while len(times) < TRIPS and sum(times) < 0.4:
        began = time.perf_counter()
        link.ask(("PING",))
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) * 99 // 100 - 1]


def _cluster(state: Any, slots: Any) -> dict[str, str]:
    told = {} if _refused(state) else fields(state)
    if not _refused(slots):
        told["primaries"] = str(len({owners[0][2] for _, _, *owners in slots}))
    return told


def _shards_of_each_node(slots: Any, shards: Sequence[tuple[str, Keys]]) -> list[int]:
    if _refused(slots):
        return []
    shares = {owners[0][2]: 0 for _, _, *owners in slots}
    for _, keys in shards:
        slot = key_slot(keys.prefix.encode())
        for first, last, (_, _, node, *_), *_ in slots:
            shares[node] += first <= slot <= last
    return [*shares.values()]


def _is_ours(entry: Sequence[Any], namespace: str) -> bool:
    words: list[bytes] = entry[3]
    return words[0].upper() == b"EVALSHA" and any(word.startswith(f"{{{namespace}:".encode()) for word in words)


def _kernel() -> dict[str, str]:
    found: dict[str, str] = {}
    for name, path in (
        ("overcommit_memory", "/proc/sys/vm/overcommit_memory"),
        ("transparent_hugepage", "/sys/kernel/mm/transparent_hugepage/enabled"),
    ):
        with contextlib.suppress(OSError):
            found[name] = Path(path).read_text().strip()
    return found


def _swapped(pid: str) -> dict[str, str]:
    """Kilobytes of a server of this machine that are on the disk; nothing where its process has another number here."""
    with contextlib.suppress(OSError, ValueError):
        lines = Path(f"/proc/{int(pid)}/status").read_text().splitlines()
        facts = dict(line.split(":", 1) for line in lines if ":" in line)
        if "VmSwap" in facts and any(name in facts.get("Name", "") for name in ("redis", "valkey")):
            return {"swapped": facts["VmSwap"].split()[0]}
    return {}
