"""Connections to the server: how one is made, and the meaning of the errors of the driver.

1. :func:`connect`: Sentinel look-ups and time-outs. ``url.py`` parses URLs. redis-py's defaults (RESP version, 5 s
   socket time-out, its own retries) change between releases, so every option of the protocol is pinned here.
2. :func:`verdict` and :func:`advice`: the next step after an error.
3. :func:`aside`: runs a call that blocks beside an event loop, also in the exit hooks of a program.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, cast

import hiredis
import redis.connection as synchronous
from redis import Redis
from redis import exceptions as driver
from redis.backoff import NoBackoff
from redis.retry import Retry as DriverRetry

from headrace.errors import (
    HeadraceError,
    ServerError,
    StoreFull,
    UrlError,
)
from headrace.store.url import Target, check_files

# The driver does not type it.
_pack_command = cast(Any, hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]

CONNECT_TIMEOUT = 5.0
# Made once: a driver that is not told its own name and version reads them from the disk for each connection.
_NAMED: dict[str, Any] = {"driver_info": named()} if (named := getattr(synchronous, "DriverInfo", None)) else {}


def common(target: Target, timeout: float) -> dict[str, Any]:
    # A waiter may be silent for minutes: a network that forgets it must be noticed.
    keepalive = {} if "path" in target.options else {"socket_keepalive": True}
    return {
        **keepalive,
        "socket_timeout": timeout,
        "socket_connect_timeout": min(timeout, CONNECT_TIMEOUT),
        "health_check_interval": 0,
        "client_name": "headrace",
        **_NAMED,
        # Retries are ours: redis-py's would repeat a script without our request numbers' knowledge.
        **{name: value for name, value in target.options.items() if name != "connection_class"},
        # Last, so that no query in a URL changes what replies look like.
        "protocol": 2,
        "decode_responses": False,
    }


def login(target: Target, timeout: float) -> tuple[dict[str, Any], float]:
    """What a new connection is made with, and when another must take its place (monotonic seconds). May block."""
    options = common(target, timeout)
    if target.credentials is None:
        return options, math.inf
    found = target.credentials.login()
    return options | found.options, found.end


# Commands that are sent as one piece, at most.
GATHER = 32


def packed(commands: Sequence[Sequence[Any]]) -> list[bytes]:
    """Commands as what is sent. redis-py's own way to hiredis takes longer than all else that an idle enqueue does."""
    packets: list[bytes] = [_pack_command(tuple(command)) for command in commands]
    if len(packets) == 1:
        return packets
    # A system call for each takes longer than their copy, and may wake the server each time.
    return [b"".join(packets[first : first + GATHER]) for first in range(0, len(packets), GATHER)]


def connect(target: Target, timeout: float) -> Any:
    """A new connected connection; each read ends after ``timeout`` seconds unless told otherwise.

    Its attribute ``end`` says when another must take its place (monotonic seconds).

    Raises:
        redis.exceptions.RedisError: see :func:`verdict`.
    """
    place: dict[str, Any] = {}
    if target.sentinels:
        place["host"], place["port"] = _master(target, timeout)
    elif target.seeds:
        place["host"], place["port"] = node_of(target, timeout)
    try:
        return _opened(target, timeout, place)
    except BaseException as error:
        if target.slots:
            target.slots.doubt(target.tag)
        blame_files(error, target)
        if isinstance(error, driver.ConnectionError) and (others := target.others):
            with contextlib.suppress(driver.RedisError):
                return connect(others, timeout)
        raise


def _opened(target: Target, timeout: float, place: dict[str, Any]) -> Any:
    options, end = login(target, timeout)
    options |= place
    options["retry"] = DriverRetry(NoBackoff(), 0)
    kind: Any = target.options.get("connection_class", synchronous.Connection)
    label = options.pop("client_name")
    connection = kind(**options)
    connection.end = end
    try:
        connection.connect()
        connection.send_command("CLIENT", "SETNAME", label)
        # Some providers refuse it, and a label is no reason to fail.
        with contextlib.suppress(driver.ResponseError):
            connection.read_response()
    except BaseException:
        # Older drivers leave the socket of a handshake that failed to the garbage collector.
        connection.disconnect()
        raise
    return connection


def node_of(target: Target, timeout: float) -> tuple[str, int]:
    """The node of a cluster that has the keys of this target, asked of other nodes where it is not known.

    Raises:
        redis.exceptions.RedisError, OSError: no node answered, or none has them.
    """
    slots = target.slots
    assert slots is not None
    # Several nodes may be silent before one answers.
    limit = min(timeout / 4, CONNECT_TIMEOUT)

    def ask(place: tuple[str, int], command: Sequence[str]) -> Any:
        connection = _opened(target, limit, {"host": place[0], "port": place[1]})
        try:
            connection.send_command(*command)
            return connection.read_response()
        finally:
            connection.disconnect()

    return slots.known(target.tag) or slots.find(target.tag, ask, timeout)


def blame_files(error: BaseException, target: Target) -> None:
    """Name the file of TLS that stands in the way of a connection: the driver says no more than that one is absent.

    Raises:
        redis.exceptions.ConnectionError: what is wrong with a file, which may be about to be exchanged.
    """
    if isinstance(error, driver.ConnectionError) and target.tls:
        try:
            check_files(target.options, target.shown)
        except UrlError as wrong:
            raise driver.ConnectionError(str(wrong)) from None


def _master(target: Target, timeout: float) -> tuple[str, int]:
    """Where the first Sentinel that knows the master says that it is.

    redis-py's own way tells every failure as a missing master, with a description of the whole client.
    """
    error: driver.RedisError | None = None
    for place, arguments in sentinels(target, timeout):
        # The driver's own repetitions would spend many time-outs on a Sentinel that is away, before the next is asked.
        with contextlib.closing(cast(Any, Redis)(**arguments, retry=DriverRetry(NoBackoff(), 0))) as client:
            try:
                if found := client.sentinel_get_master_addr_by_name(target.service):
                    return cast(tuple[str, int], found)
                error = unknown(target, place)
            except driver.RedisError as failed:
                error = failed
    assert error is not None
    raise error


def sentinels(target: Target, timeout: float) -> list[tuple[str, dict[str, Any]]]:
    # Shared among them, so that those that are silent leave the last one its time.
    limit = min(timeout / len(target.sentinels), CONNECT_TIMEOUT)
    shared = {"socket_timeout": limit, "socket_connect_timeout": limit, "protocol": 2}
    shared |= {"decode_responses": True, **target.sentinel_options}
    return [(f"{host}:{port}", {"host": host, "port": port, **shared}) for host, port in target.sentinels]


def unknown(target: Target, place: str) -> driver.ConnectionError:
    return driver.ConnectionError(f"the Sentinel at {place} knows no master {target.service!r}")


# Redis before 7 wraps what a command inside a script answered into an error of the script.
_WRAPPED = re.compile(r"Error running script [^:]*: @?(\S+:\d+): .*?-?([A-Z]{3,} .*)", re.DOTALL)
# Where in a script: of no use to whoever has to make room, and another text at each script that meets it.
_WHERE = re.compile(r",? script: [^ ]*,? ?on \S+:\d+\.?")
# What servers say when a user may run a script, but not a command, key or channel inside it.
_FORBIDDEN = ("NOPERM", "ACL failure in script", "The user executing the script can't")
_AGAIN = ("LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "NOREPLICAS", "BUSY ", "UNBLOCKED")

Verdict = Literal["again", "load"] | HeadraceError


def verdict(error: Exception, target: Target, doing: str, *, private: bool = False) -> Verdict:
    """What a failed command means.

    Args:
        private: Headrace runs the server itself. It knows the password, so one that refuses it is another server, in a
            directory that was made anew, and is joined as soon as it was looked up.

    Returns:
        ``again``: drop the connection, resolve anew and repeat (after a failover the old node says READONLY for
        ever); ``load``: the server does not know the script; or the error to raise.
    """
    if isinstance(error.__cause__, (driver.AuthenticationError, driver.ResponseError)):
        # The asynchronous driver makes a lost connection of a refused password or database.
        error = error.__cause__
    text = _WRAPPED.sub(r"\2 script: on \1.", str(error))
    if isinstance(error, driver.NoScriptError):
        return "load"
    if (fault := _misnamed(error, target) or _fault(error, text, target, doing)) is not None:
        return "again" if private and isinstance(fault, UrlError) else fault
    # By class too: the driver takes the code that it knows off the text.
    again = (
        driver.ConnectionError,
        driver.TimeoutError,
        driver.ReadOnlyError,
        driver.ClusterDownError,
        driver.MasterDownError,
        driver.TryAgainError,
        driver.AskError,
        OSError,
    )
    if isinstance(error, again) or text.startswith(_AGAIN):
        return "again"
    return ServerError(f"{target.shown} answered to {doing}: {text}")


def refusal(error: Exception, target: Target, doing: str) -> HeadraceError | None:
    """The verdict on an error that answers one call only: the server works, and would not do what this call asks.

    So it is with OOM, MISCONF, NOPERM and errors of scripts. None for all else: a fault of the connection or of the
    whole server, or a script that must be loaded.
    """
    word = verdict(error, target, doing)
    return word if isinstance(error, driver.ResponseError) and isinstance(word, (ServerError, StoreFull)) else None


def _fault(error: Exception, text: str, target: Target, doing: str) -> HeadraceError | None:
    """The error to raise for what no repetition will repair; None for all else."""
    if isinstance(error, (driver.AuthenticationError, driver.AuthorizationError)) or text.startswith(
        ("NOAUTH", "WRONGPASS")
    ):
        place = "in the URL" if target.credentials is None else f"that {target.credentials.source} gives"
        return UrlError(f"{target.shown} refused the credentials, so check user and password {place}")
    if "CERTIFICATE_VERIFY_FAILED" in (said := _told(error)):
        return ServerError(_certificate(said, target))
    if isinstance(error, driver.InvalidResponse):
        return ServerError(f"{target.shown} does not speak the protocol of Redis ({text}){_speaks(text, target)}")
    if isinstance(error, driver.NoPermissionError) or any(sign in text for sign in _FORBIDDEN):
        return ServerError(
            f"{target.shown} does not permit {doing}: give its user the namespace's keys, channels and scripts ({text})"
        )
    if isinstance(error, driver.OutOfMemoryError) or text.startswith(("OOM", "MISCONF")):
        why = _WHERE.sub("", text)
        return StoreFull(f"{target.shown} refused to store: its memory or disk is full ({why})")
    return ServerError(f"{target.shown} {_NO_DISK['unknown' in text]}") if "WAITAOF" in text else None


_NO_DISK = (
    'has no append-only file for durability="fsync": set appendonly yes, or ask for "memory" or "replicated"',
    'is too old for durability="fsync": upgrade it to Redis 7.2 or Valkey 7.2, or ask for "memory" or "replicated"',
)


def _misnamed(error: Exception, target: Target) -> UrlError | None:
    """The error to raise where the URL takes a server for a cluster, or a node of a cluster for a server."""
    if target.seeds:
        return no_cluster(target) if "cluster support disabled" in str(error) else None
    return node_of_a_cluster(target) if isinstance(error, driver.AskError) else None


def no_cluster(target: Target) -> UrlError:
    scheme = "rediss" if target.tls else "redis"
    return UrlError(f"{target.shown} is no cluster: write {scheme}://host:6379 in the URL")


def node_of_a_cluster(target: Target) -> UrlError:
    scheme = "clusters" if target.tls else "cluster"
    return UrlError(
        f"{target.shown} is a node of a cluster, and others may have the jobs: name some of its nodes in the URL, as "
        f"{scheme}://host:6379,host:6379"
    )


def _told(error: BaseException) -> str:
    """What an error and those that it came from say: the driver's own text may be no more than a number."""
    cause = error.__cause__ or error.__context__
    return str(error) if cause is None else f"{error}: {_told(cause)}"


def _certificate(text: str, target: Target) -> str:
    reason = text.partition("certificate verify failed: ")[2].partition(" (_ssl")[0] or text
    step = "name the file of the authority that signed it with ?ssl_ca_certs=/path"
    if "mismatch" in reason and target.seeds:
        step = "have each node announce a name that it is valid for (cluster-announce-hostname), or use "
        step += "?ssl_check_hostname=false"
    elif "mismatch" in reason:
        step = "use a name in the URL that it is valid for, or ?ssl_check_hostname=false"
    elif "expired" in reason:
        step = "renew it"
    return f"{target.shown} shows a certificate that is not accepted ({reason.rstrip('.')}): {step}"


def _scheme(target: Target, *, tls: bool) -> str:
    kind = "sentinel" if target.sentinels else "cluster" if target.seeds else "redis"
    return kind + ("s://" if tls else "://")


def _speaks(text: str, target: Target) -> str:
    if 'got "H"' in text or 'got "<"' in text:  # HTTP, or HTML without its head
        return ": it looks like a web server; check host and port of the URL"
    if target.tls:
        return f": the port may be one without TLS, then write {_scheme(target, tls=False)}"
    return "" if "path" in target.options else f": the port may be one with TLS, then write {_scheme(target, tls=True)}"


# How a connection ends that was made, and then spoke in a way that the other end did not expect.
_ENDED = (
    "reset by peer",
    "closed by server",
    "closed the connection",
    "EOF occurred",
    "alert",
    "Broken pipe",
    "Connection lost",
)
# What a TLS client says of a port that answers in another way, or waits for more.
_PLAIN = ("WRONG_VERSION_NUMBER", "handshake", "Timeout connecting", "UNEXPECTED_EOF", "RECORD_LAYER")


# What a server says that runs and takes no work, or stands in the way to it, and what to do.
_STEPS = {
    "max number of clients": "it runs, and has no room: raise its maxclients, or end programs that use it.",
    "read only replica": "it is a replica: write the URL of its master, or wait until one is promoted.",
    "loading the dataset": "it runs, and loads its data: wait.",
    "lot not served": "no node serves the slot of the namespace: start its node, or give the slot to another node.",
    "no node serves slot": "start its node, or give the slot to another node.",
    "cluster is down": "most primaries are away, or a slot has no node (CLUSTER INFO tells): start the nodes that are "
    "missing, and set cluster-require-full-coverage to no, so that slots with a node are served.",
    "TRYAGAIN": "the slot of the namespace is moving key by key to another node, and is served when it is there.",
    # What check_files says.
    " has ssl_": "correct the file.",
    # What Credentials.login says.
    "no credentials came from": "correct what gives them.",
}


def advice(error: BaseException, target: Target) -> str:
    """What to look for when a server does not answer: a question, or nothing more than whether it runs."""
    text = _told(error)
    for sign, step in _STEPS.items():
        if sign in text:
            return step
    if target.tls and any(sign in text for sign in _PLAIN):
        other = _scheme(target, tls=False)
        return f"is the server running, and does this port speak TLS? If it does not, write {other} in the URL."
    if target.tls and "ssl_certfile" not in target.options and any(sign in text for sign in _ENDED):
        step = "If it does, add ?ssl_certfile=/path&ssl_keyfile=/path to the URL."
        return f"is the server running, and does it ask for a client's certificate? {step}"
    if not target.tls and "path" not in target.options and any(sign in text for sign in _ENDED):
        other = _scheme(target, tls=True)
        return f"is the server running, and does this port speak TLS? If it does, write {other} in the URL."
    if "knows no master" in text:
        return "check the name in the URL."
    question = "is the server running"
    if target.sentinels:
        question = f"do the Sentinels run, and their master {target.service!r}"
    elif target.seeds:
        question = "do the cluster's nodes run, and do those in the URL belong to it"
    if "ssl_certfile" in target.options and "alert" in text:
        question = "does the server accept the certificate that ssl_certfile names, or has that expired"
    return f"{question}?"


def pause_before(attempt: int, dice: float, most: float = 2.0) -> float:
    """Seconds to wait before the ``attempt``-th repetition (from 1): doubling to ``most``, with half of it random."""
    return min(0.02 * 2.0 ** min(attempt, 10), most) * (0.5 + 0.5 * dice)


T = TypeVar("T")


async def aside(act: Callable[[], T]) -> T:
    """Run it in a thread, so that the event loop is free; in an exit hook, which gets no thread any more, here."""
    if threading.main_thread().is_alive():
        return await asyncio.to_thread(act)
    return act()
