"""Connections to the server: how one is made.

1. :func:`connect`: Sentinel look-ups and time-outs. ``url.py`` parses URLs. redis-py's defaults (RESP version, 5 s
   socket time-out, its own retries) change between releases, so every option of the protocol is pinned here.
2. :func:`packed` and :func:`pause_before`: what is sent, and when again.
3. :func:`aconnect` and what it needs: the same for asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence
from functools import partial
from inspect import signature
from types import TracebackType
from typing import Any, cast

import hiredis
import redis.asyncio.connection as asynchronous
import redis.connection as synchronous
from redis import Redis
from redis import exceptions as driver
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry as DriverRetry

from headrace.errors import UrlError
from headrace.store.surroundings import aside
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
        **target.options,
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
    packets: list[bytes] = [_pack_command(tuple(command)) for command in commands]
    if len(packets) == 1:
        return packets
    # A system call for each takes longer than their copy, and may wake the server each time.
    return [b"".join(packets[first : first + GATHER]) for first in range(0, len(packets), GATHER)]


def connect(target: Target, timeout: float) -> Any:
    """A new connected connection; each read ends after ``timeout`` seconds unless told otherwise. Its attribute ``end``
    says when another must take its place (monotonic seconds). Raises redis.exceptions.RedisError: see
    :func:`headrace.store.verdict.verdict`.
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


def driver_client(target: Target, timeout: float) -> Any:
    """A client of the driver, of one connection, for readers of the keyspace; it answers in bytes. Connects at use."""
    options, _ = login(target, timeout)
    if target.sentinels or target.seeds:
        options["host"], options["port"] = (_master if target.sentinels else node_of)(target, timeout)
    options["retry"] = DriverRetry(NoBackoff(), 0)
    pool = synchronous.ConnectionPool(connection_class=connection_class(target), max_connections=1, **options)
    return cast(Any, Redis)(connection_pool=pool)


def connection_class(target: Target) -> Any:
    if "path" in target.options:
        return synchronous.UnixDomainSocketConnection
    return synchronous.SSLConnection if target.tls else synchronous.Connection


def _opened(target: Target, timeout: float, place: dict[str, Any]) -> Any:
    options, end = login(target, timeout)
    options |= place
    options["retry"] = DriverRetry(NoBackoff(), 0)
    kind = connection_class(target)
    label = options.pop("client_name")
    connection = kind(**options)
    connection.end = end
    try:
        connection.connect()
        connection.send_command("CLIENT", "SETNAME", label)
        # Some providers refuse it, and a label is not a reason to fail.
        with contextlib.suppress(driver.ResponseError):
            connection.read_response()
    except BaseException:
        # Older drivers leave the socket of a handshake that failed to the garbage collector.
        connection.disconnect()
        raise
    return connection


def node_of(target: Target, timeout: float) -> tuple[str, int]:
    """The node of a cluster that has the keys of this target, asked of other nodes where it is not known. Raises
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
    Raises redis.exceptions.ConnectionError: what is wrong with a file, which may be about to be exchanged.
    """
    if isinstance(error, driver.ConnectionError) and target.tls:
        try:
            check_files(target.options, target.shown)
        except UrlError as wrong:
            raise driver.ConnectionError(str(wrong)) from None


def _master(target: Target, timeout: float) -> tuple[str, int]:
    """Where the first Sentinel that knows the master says that it is. redis-py's own way tells every failure as a
    missing master, with a description of the whole client.
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


def pause_before(attempt: int, dice: float, most: float = 2.0) -> float:
    """Seconds to wait before the ``attempt``-th repetition (from 1): doubling to ``most``, with half of it random."""
    return min(0.02 * 2.0 ** min(attempt, 10), most) * (0.5 + 0.5 * dice)


async def aconnect(target: Target, timeout: float) -> Any:
    # Credentials may come from afar, and must not hold up the event loop.
    found = login(target, timeout) if target.credentials is None else await aside(partial(login, target, timeout))
    options, end = found[0] | {"socket_timeout": None}, found[1]
    options["retry"] = AsyncRetry(NoBackoff(), 0)
    kind: Any = asynchronous.SSLConnection if target.tls else asynchronous.Connection
    if "path" in target.options:
        kind = asynchronous.UnixDomainSocketConnection
    if "ssl_certfile" in options and "ssl_password" not in signature(asynchronous.SSLConnection).parameters:
        # The oldest drivers take no password in coroutines, and no certificate without the file of its key.
        options.setdefault("ssl_keyfile", options["ssl_certfile"])
        if not options["ssl_password"]:
            del options["ssl_password"]
    if target.sentinels:
        options["host"], options["port"] = await _amaster(target, timeout)
    elif slots := target.slots:
        if (place := slots.known(target.tag)) is None:
            place = await aside(partial(node_of, target, timeout))
        options["host"], options["port"] = place
    label = options.pop("client_name")
    connection = kind(**options)
    connection.end = end
    try:
        async with _in_time(timeout, "connecting"):
            await connection.connect()
            await connection.send_command("CLIENT", "SETNAME", label)
            # As in connect.
            with contextlib.suppress(driver.ResponseError):
                await connection.read_response()
    except BaseException as error:
        # As in connect; without waiting, since the caller may have been cancelled.
        await connection.disconnect(nowait=True)
        if target.slots:
            target.slots.doubt(target.tag)
        blame_files(error, target)
        if isinstance(error, driver.ConnectionError) and (others := target.others):
            with contextlib.suppress(driver.RedisError):
                return await aconnect(others, timeout)
        raise
    return connection


async def _amaster(target: Target, timeout: float) -> tuple[str, int]:
    error: driver.RedisError | None = None
    for place, arguments in sentinels(target, timeout):
        async with contextlib.aclosing(cast(Any, AsyncRedis)(**arguments, retry=AsyncRetry(NoBackoff(), 0))) as client:
            try:
                if found := await client.sentinel_get_master_addr_by_name(target.service):
                    return cast(tuple[str, int], found)
                error = unknown(target, place)
            except driver.RedisError as failed:
                error = failed
    assert error is not None
    raise error


async def send(connection: Any, commands: Sequence[Sequence[Any]], seconds: float) -> None:
    """Send commands, in this many seconds. Raises redis.exceptions.RedisError, OSError: the connection is gone."""
    async with _in_time(seconds, "writing to socket"):
        await connection.send_packed_command(packed(commands), check_health=False)


async def read(connection: Any, seconds: float) -> Any:
    """The next reply, in this many seconds. Raises redis.exceptions.RedisError, OSError: the connection is gone, or the
    reply is an error.
    """
    async with _in_time(seconds, "reading from socket"):
        return await connection.read_response()


class _in_time:  # noqa: N801 - as asyncio.timeout, whose error it turns into the driver's
    """``async with _in_time(seconds, "reading"):`` what takes longer ends with the driver's TimeoutError."""

    __slots__ = ("_doing", "_timeout")

    def __init__(self, seconds: float, doing: str) -> None:
        self._timeout, self._doing = asyncio.timeout(seconds), doing

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            raise driver.TimeoutError(f"Timeout {self._doing}") from None
