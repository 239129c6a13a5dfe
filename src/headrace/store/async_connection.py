"""How a coroutine makes a connection to the server, sends and reads: connection.py for asyncio.

Each connection, write and read has a time limit of our own. redis-py's ``wait_for`` may lose a cancellation: before
Python 3.12 a task that is cancelled just when a reply comes goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from inspect import signature
from types import TracebackType
from typing import Any, cast

import redis.asyncio.connection as asynchronous
from redis import exceptions as driver
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff

from headrace.store.connection import blame_files, login, node_of, packed, sentinels, unknown
from headrace.store.surroundings import aside
from headrace.store.url import Target


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
