"""Connections to the server: how one is made, and how many there are.

1. :func:`connect`: Sentinel look-ups and time-outs. ``url.py`` parses URLs. redis-py's defaults (RESP version, 5 s
   socket time-out, its own retries) change between releases, so every option of the protocol is pinned here.
2. :func:`packed` and :func:`pause_before`: what is sent, and when again.
3. :func:`aconnect` and what it needs: the same for asyncio.
4. :class:`ConnectionPool`: the connections of a process's threads, or of one event loop: a bound, a line of callers
   beyond it, an end when idle. A call takes an idle connection, or a permit to open one, or waits in line for either
   until its time is over. No lock guards this: each operation on a deque is atomic. A caller that gives back appends
   first and reads the line second; a caller that waits enters the line first and looks for a connection second. So one
   of the two sees the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from functools import partial
from inspect import signature
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

import hiredis
import redis.asyncio.connection as asynchronous
import redis.connection as synchronous
from redis import Redis
from redis import exceptions as driver
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry as DriverRetry

from headrace.clock import monotonic
from headrace.errors import UrlError
from headrace.mailbox import Mailbox
from headrace.store.surroundings import aside
from headrace.store.url import Target, check_files

# The driver does not type it.
_pack_command = cast(Any, hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]

CONNECT_TIMEOUT = 5.0
PARTING = 0.2  # seconds for the word of a server that has closed a connection before it read anything
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


GATHER = 32  # commands that are sent as one piece, at most


def packed(commands: Sequence[Sequence[Any]]) -> list[bytes]:
    packets: list[bytes] = [_pack_command(tuple(command)) for command in commands]
    if len(packets) == 1:
        return packets
    # A system call for each takes longer than their copy, and may wake the server each time.
    return [b"".join(packets[first : first + GATHER]) for first in range(0, len(packets), GATHER)]


def connect(target: Target, timeout: float) -> Any:
    """A new connection with its ``end``; each read takes ``timeout`` seconds at most. Raises RedisError, OSError."""
    place: dict[str, Any] = {}
    if target.sentinels:
        place["host"], place["port"] = _master(target, timeout)
    elif target.seeds:
        place["host"], place["port"] = node_of(target, timeout)
    try:
        return _opened(target, timeout, place)
    except BaseException as error:
        if target.slots:
            target.slots.forget_place(target.tag)
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
        words = _first_words(target, label)
        connection.send_packed_command(connection.pack_commands(words))
        for _ in words:
            with _answers(target, options):
                connection.read_response()
    except BaseException as error:
        # Older drivers leave the socket of a handshake that failed to the garbage collector.
        connection.disconnect()
        cause = error.__cause__ or error.__context__
        if isinstance(cause, BrokenPipeError) and "path" in options and (word := _parting_word(connection)):
            raise driver.ConnectionError(word) from None
        raise
    return connection


def _first_words(target: Target, label: object) -> list[tuple[object, ...]]:
    """A label, and on a cluster what only nodes answer: another server may have got the address of one that died."""
    return [("CLIENT", "SETNAME", label), *([("CLUSTER", "MYID")] if target.seeds else [])]


@contextlib.contextmanager
def _answers(target: Target, options: Mapping[str, Any]) -> Generator[None]:
    """Around the answer to a first word: some providers refuse it, and a label is not a reason to fail."""
    try:
        yield
    except driver.ResponseError as refused:
        if "cluster support disabled" not in str(refused):
            return
        place = options["host"], options["port"]
        if place in target.seeds:
            raise
        where = f"{place[0]}:{place[1]}, which was a node of the cluster, is another server now"
        raise driver.ConnectionError(where) from None


def _parting_word(connection: Any) -> str:
    """A server without room says so and closes at once. A write that fails hides its word, so nothing is written here.

    Each ask is one more connection, so only servers of this machine are asked.
    """
    said = b""
    with contextlib.suppress(driver.RedisError, OSError), contextlib.closing(connection._connect()) as sock:  # noqa: SLF001
        sock.settimeout(PARTING)
        said = sock.recv(512)
    return said.partition(b"\r\n")[0][1:].decode("utf-8", "replace").removeprefix("ERR ") if said[:1] == b"-" else ""


def node_of(target: Target, timeout: float) -> tuple[str, int]:
    """The node of a cluster that has a target's keys. Raises redis.exceptions.RedisError, OSError: no node says so."""
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
    """Name the file of TLS that stands in the way, by a ConnectionError: the driver says only that one is absent."""
    if isinstance(error, driver.ConnectionError) and target.tls:
        try:
            check_files(target.options, target.shown)
        except UrlError as wrong:
            raise driver.ConnectionError(str(wrong)) from None


def _master(target: Target, timeout: float) -> tuple[str, int]:
    """Where the first Sentinel that knows the master has it. redis-py's way tells each failure as a missing master."""
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
            words = _first_words(target, label)
            await connection.send_packed_command(connection.pack_commands(words))
            for _ in words:
                with _answers(target, options):
                    await connection.read_response()
    except BaseException as error:
        # As in connect; without waiting, since the caller may have been cancelled.
        await connection.disconnect(nowait=True)
        if target.slots:
            target.slots.forget_place(target.tag)
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
    """The next reply. Raises redis.exceptions.RedisError, OSError: the connection is gone, or the reply is an error."""
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


C = TypeVar("C")

IDLE = 10.0  # seconds without a call after which a connection is closed


class AllInUse(driver.TimeoutError):
    """A call got no connection in time."""


class ConnectionPool(Generic[C]):
    """Idle connections, and permits to open more.

    Attributes:
        idle: connections that no call uses, the one that was used last at the right. Each has the attribute ``used``:
            when its last call began (monotonic seconds).
        line: how each caller that waits is handed a connection, or None: a permit.
    """

    def __init__(self, most: int) -> None:
        self.idle: deque[C] = deque()
        self.line: deque[Callable[[C | None], None]] = deque()
        self._most = most
        self._permits: deque[None] = deque([None] * most)
        self._ending = threading.Lock()
        self._wake = threading.Event()
        # A loop keeps no task alive.
        self._closing: asyncio.Task[None] | None = None

    @property
    def must_wait(self) -> bool:
        return not self.idle and not self._permits

    @property
    def several(self) -> bool:
        return len(self._permits) < self._most - 1

    def take(self) -> C | None:
        """An idle connection, or None: the caller opens one. Raises IndexError: neither is left."""
        try:
            return self.idle.pop()
        except IndexError:
            return self._permits.pop()

    def give(self, connection: C | None) -> None:
        """Give back a connection, or None: the permit of one that was closed or not opened."""
        if connection is None:
            self._permits.append(None)
            self._wake.set()
        else:
            self.idle.append(connection)
        if self.line:
            self.serve()

    def serve(self) -> None:
        while self.line:
            try:
                found = self.take()
            except IndexError:
                return
            try:
                self.line.popleft()(found)
            except IndexError:  # the last one in line has left
                self._permits.append(None) if found is None else self.idle.append(found)

    def wait(self, seconds: float) -> C | None:
        """As :meth:`take`, in line. Raises AllInUse: nothing was given back to this caller for that time."""
        inbox: Mailbox[C | None] = Mailbox()
        with self._in_line(inbox.put, inbox.get):
            return inbox.get(seconds)

    async def await_(self, seconds: float) -> C | None:
        inbox: asyncio.Queue[C | None] = asyncio.Queue()
        with self._in_line(inbox.put_nowait, inbox.get_nowait):
            async with asyncio.timeout(seconds):
                return await inbox.get()

    @contextlib.contextmanager
    def _in_line(self, put: Callable[[C | None], None], get: Callable[[], C | None]) -> Generator[None]:
        self.line.append(put)
        self.serve()
        try:
            yield
        except BaseException as error:
            try:
                self.line.remove(put)
            except ValueError:  # it was handed something meanwhile
                self.give(get())
            if isinstance(error, (queue.Empty, TimeoutError)):
                raise AllInUse(f"all {self._most} connections of this process are in use") from None
            raise

    def expired(self) -> list[Any]:
        """Take out connections idle for too long, but the last open one; the caller closes them and gives permits."""
        found: list[Any] = []
        with contextlib.suppress(IndexError):
            while len(self._permits) + len(found) < self._most - 1:
                oldest: Any = self.idle.popleft()
                if oldest.used > monotonic() - IDLE:
                    self.idle.appendleft(oldest)
                    break
                found.append(oldest)
        self.serve()
        return found

    def end_idle(self) -> None:
        """Start the thread that closes idle connections, unless it runs: a resting program does not call any more. It
        lives while several connections are open, so a program of one thread never has it.
        """
        if self.several and self._ending.acquire(blocking=False):
            try:
                threading.Thread(target=self._end, name="headrace-idle", daemon=True).start()
            except RuntimeError:  # the system has no room for a thread, or the interpreter ends
                self._ending.release()

    def _end(self) -> None:
        while self.several:
            self._wake.clear()
            self._wake.wait(IDLE / 2)
            for connection in self.expired():
                connection.close()
                self.give(None)
        self._ending.release()
        self.end_idle()  # another may have been opened since

    def end_idle_on(self, loop: asyncio.AbstractEventLoop, close: Callable[..., Coroutine[Any, Any, None]]) -> None:
        """Have the loop ``close(*connections)`` what is idle for too long, while several connections are open."""
        if self.several and self._ending.acquire(blocking=False):
            loop.call_later(IDLE / 2, self._end_on, loop, close)

    def _end_on(self, loop: asyncio.AbstractEventLoop, close: Callable[..., Coroutine[Any, Any, None]]) -> None:
        self._ending.release()
        if expired := self.expired():
            self._closing = loop.create_task(close(*expired))
        self.end_idle_on(loop, close)
