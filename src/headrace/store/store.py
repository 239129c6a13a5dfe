"""Store and AsyncStore: send a Call, read its reply. The only code that talks to the server for producers and people.

They differ in how they connect, send and read only. Both repeat a call whose connection failed, with a jittered
back-off, until the settings' ``timeout``: every call is safe to repeat (see docs/design/store.md). Both may be shared
by threads or tasks, and both begin anew in a forked child.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial
from typing import Any, TypeVar

from redis import exceptions as driver

from headrace.clock import monotonic
from headrace.protocol.script import Call
from headrace.settings import Settings
from headrace.store.connection import ConnectionPool, aconnect, read, send
from headrace.store.raw_connection import RawConnection
from headrace.store.reach import SILENCE, Reach, accepted, fill, loads, missing, names, values
from headrace.store.surroundings import aside
from headrace.store.verdict import verdict

T = TypeVar("T")


class Slots:
    """Producer slots: a name and the number of its next request.

    A slot is used by one call at a time, so the server can tell a repeated request from a new one by its number alone,
    whatever happened to the job since.
    """

    def __init__(self) -> None:
        self._free: deque[tuple[str, int]] = deque()
        self._pid = os.getpid()

    def take(self) -> tuple[str, int]:
        if self._pid != os.getpid():
            self._free, self._pid = deque(), os.getpid()
        try:
            return self._free.pop()
        except IndexError:
            return os.urandom(9).hex(), 1

    def answered(self, sender: str, number: int) -> None:
        """The slot may serve the next request. One whose request failed stays out of use: its fate is unknown."""
        self._free.append((sender, number + 1))


class Store(Reach):
    """The store for threads. ``slots``: for enqueues. ``parts``: a store for each shard."""

    def __init__(self, url: str, settings: Settings, shard: int = 0, number: str = "1") -> None:
        super().__init__(url, settings, shard, number)
        self.slots, self.parts = Slots(), [self]
        self._pool: ConnectionPool[RawConnection] = ConnectionPool(settings.max_connections)
        self._pid = os.getpid()

    def run(self, call: Call[T]) -> T:
        """Send one call. Raises StoreUnavailable: no answer within the settings' ``timeout``. Raises StoreFull: the
        server refused to store. Raises ServerError: it answered with another error. Cost: one round trip.
        """
        value: T = self.run_all([call])[0]
        return value

    def run_all(self, calls: Sequence[Call[Any]], hasty: int = 0) -> list[Any]:
        """Several calls in one round trip, in order, but not as one. Raises as :meth:`run`; ``hasty``: see Reach."""
        now = monotonic()
        deadline = now + self.settings.timeout
        try:
            return self._attempt(calls, now, deadline)
        except (driver.RedisError, OSError) as failed:
            error = failed
        # Not in the handler: the cause of what fails later would be that of this.
        return self._repeat(calls, error, deadline, hasty)

    def _repeat(self, calls: Sequence[Call[Any]], error: Exception, deadline: float, hasty: int) -> list[Any]:
        """After the first attempt, until the deadline."""
        attempt = 0
        while True:
            attempt += 1
            time.sleep(self.give_up_or_wait(error, attempt, deadline, names(calls), hasty))
            self.try_to_revive(attempt)
            try:
                return self._attempt(calls, monotonic(), deadline)
            except (driver.RedisError, OSError) as failed:
                error = failed

    def _attempt(self, calls: Sequence[Call[Any]], now: float, deadline: float) -> list[Any]:
        if self._pid != os.getpid():
            # The parent's sockets are not ours: two processes that read one stream garble both.
            self._pool = ConnectionPool(self.settings.max_connections)
            self._pid = os.getpid()
        pool = self._pool
        try:
            connection = pool.idle.pop()
        except IndexError:
            connection = None
        if connection is None:
            # Not in the handler: that would take the place of what a failed connection came from.
            connection = self._another(pool, deadline - now)
        if connection.end < now:
            connection.close()
            connection = self._open(pool)
        connection.used = now
        # Not a context manager: an idle program pays for each function that it calls before it sends.
        try:
            found = self._exchange(connection, calls)
        except BaseException as error:
            self._close_unless_answered(pool, connection, error)
            raise
        pool.idle.append(connection)
        if pool.line:
            pool.serve()
        return found

    def close(self) -> None:
        """Close the idle connections; the store may be used again."""
        pool = self._pool
        with contextlib.suppress(IndexError):  # another thread may take the last one
            while True:
                pool.idle.pop().close()
                pool.give(None)

    def _another(self, pool: ConnectionPool[RawConnection], seconds: float) -> RawConnection:
        try:
            found = pool.take()
        except IndexError:
            found = pool.wait(seconds)
        return self._open(pool) if found is None else found

    def _open(self, pool: ConnectionPool[RawConnection]) -> RawConnection:
        try:
            connection = self._connect()
        except BaseException:
            pool.give(None)
            raise
        pool.end_idle()
        return connection

    def _close_unless_answered(
        self, pool: ConnectionPool[RawConnection], connection: RawConnection, error: BaseException
    ) -> None:
        if isinstance(error, driver.ResponseError) and verdict(error, self.target, "") != "again":
            pool.give(connection)
        else:
            connection.close()
            pool.give(None)
            if isinstance(error, (TimeoutError, driver.MovedError)):
                # They lead to the same silence or node, and each would cost as much.
                self.close()

    def _connect(self) -> RawConnection:
        with self.patience():
            connection = RawConnection(self.target, self.attempt_time)
            try:
                self._greet(connection)
            except BaseException:
                connection.close()
                raise
            return connection

    def _greet(self, connection: RawConnection) -> None:
        if self._greeted:
            return
        if not self._checked:
            self.check_server(accepted(self._ask(connection, [("INFO", "server"), ("INFO", "memory")])))
        self.check_schema(self._exchange(connection, [self.greeting()])[0])

    def _ask(self, connection: RawConnection, commands: Sequence[Sequence[Any]]) -> list[Any]:
        self.sent += 1
        return connection.ask(*commands)

    def _exchange(self, connection: RawConnection, calls: Sequence[Call[Any]]) -> list[Any]:
        replies = self._ask(connection, [call.command() for call in calls])
        if absent := missing(calls, replies):
            self._load(connection, calls, replies, absent)
        return values(calls, replies)

    def _load(
        self, connection: RawConnection, calls: Sequence[Call[Any]], replies: list[Any], absent: Sequence[int]
    ) -> None:
        scripts = loads([calls[n] for n in absent])
        told = self._ask(connection, [*scripts, *(calls[n].command() for n in absent)])
        fill(replies, absent, told[: len(scripts)], told[len(scripts) :])


class AsyncStore(Reach):
    """The store for one event loop; see :class:`Store` for each verb's guarantee, errors and cost."""

    def __init__(self, url: str, settings: Settings, shard: int = 0, number: str = "1") -> None:
        super().__init__(url, settings, shard, number)
        self.slots = Slots()
        self._pid = os.getpid()
        # By loop of this process, since threads may run several at once: its connections, and what closes them.
        self._pools: dict[asyncio.AbstractEventLoop, tuple[ConnectionPool[Any], AsyncIterator[None]]] = {}
        self._parents: list[Any] = []

    async def run(self, call: Call[T]) -> T:
        value: T = (await self.run_all([call]))[0]
        return value

    async def run_all(self, calls: Sequence[Call[Any]], hasty: int = 0) -> list[Any]:
        now, attempt = monotonic(), 0
        deadline = now + self.settings.timeout
        while True:
            try:
                async with self._connection(now, deadline) as connection:
                    return await self._exchange(connection, calls)
            except (driver.RedisError, OSError) as error:
                attempt += 1
                await asyncio.sleep(self.give_up_or_wait(error, attempt, deadline, names(calls), hasty))
                await aside(partial(self.try_to_revive, attempt))
                now = monotonic()

    async def close(self) -> None:
        line = self._pools.get(asyncio.get_running_loop())
        while line and line[0].idle:
            await line[0].idle.pop().disconnect()
            line[0].give(None)

    @contextlib.asynccontextmanager
    async def _connection(self, now: float, deadline: float) -> AsyncGenerator[Any]:
        loop = asyncio.get_running_loop()
        pool = await self._settle_in(loop)
        # Not in a handler of IndexError: that would take the place of what a failed connection came from.
        connection = pool.idle.pop() if pool.idle else await self._another(loop, pool, deadline - now)
        if connection.end < now:
            await connection.disconnect(nowait=True)
            connection = await self._open(loop, pool)
        connection.used = now
        try:
            yield connection
        except driver.ResponseError as error:
            if verdict(error, self.target, "") == "again":
                await self._end(pool, connection)
                while pool.idle and isinstance(error, driver.MovedError):
                    await self._end(pool, pool.idle.pop())
            else:
                pool.give(connection)
            raise
        except BaseException as error:
            await self._end(pool, connection)
            while pool.idle and isinstance(error, driver.TimeoutError):
                await self._end(pool, pool.idle.pop())
            raise
        pool.give(connection)

    async def _another(self, loop: asyncio.AbstractEventLoop, pool: ConnectionPool[Any], seconds: float) -> Any:
        found = await pool.await_(seconds) if pool.must_wait else pool.take()
        return await self._open(loop, pool) if found is None else found

    async def _open(self, loop: asyncio.AbstractEventLoop, pool: ConnectionPool[Any]) -> Any:
        try:
            connection = await self._connect()
        except BaseException:
            pool.give(None)
            raise
        pool.end_idle_on(loop, partial(self._end, pool))
        return connection

    async def _end(self, pool: ConnectionPool[Any], *connections: Any) -> None:
        for connection in connections:
            try:
                await connection.disconnect(nowait=True)
            finally:
                pool.give(None)

    async def _connect(self) -> Any:
        timer = asyncio.get_running_loop().call_later(SILENCE, self.tell_waiting)
        try:
            connection: Any = await aconnect(self.target, self.attempt_time)
            try:
                await self._greet(connection)
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
        finally:
            timer.cancel()
        self._told = False
        return connection

    async def _settle_in(self, loop: asyncio.AbstractEventLoop) -> ConnectionPool[Any]:
        if self._pid != os.getpid():
            # Kept, never closed: a fork shares its parent's epoll, where closing would make the parent deaf.
            self._parents.append(self._pools)
            self._pools, self._pid = {}, os.getpid()
        if (line := self._pools.get(loop)) is not None:
            return line[0]
        for other in [other for other in list(self._pools) if other.is_closed()]:
            self._pools.pop(other, None)
        pool: ConnectionPool[Any] = ConnectionPool(self.settings.max_connections)
        keeper = self._keep(loop, pool)
        self._pools[loop] = (pool, keeper)
        await anext(keeper)
        return pool

    async def _keep(self, loop: asyncio.AbstractEventLoop, pool: ConnectionPool[Any]) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self._pools.pop(loop, None)
            while pool.idle:
                await pool.idle.pop().disconnect()

    async def _greet(self, connection: Any) -> None:
        if self._greeted:
            return
        if not self._checked:
            await self._send(connection, [("INFO", "server"), ("INFO", "memory")])
            self.check_server([await read(connection, self.attempt_time) for _ in range(2)])
        self.check_schema((await self._exchange(connection, [self.greeting()]))[0])

    async def _send(self, connection: Any, commands: Sequence[Sequence[Any]]) -> None:
        self.sent += 1
        await send(connection, commands, self.attempt_time)

    async def _exchange(self, connection: Any, calls: Sequence[Call[Any]]) -> list[Any]:
        await self._send(connection, [call.command() for call in calls])
        replies = [await self._reply(connection) for _ in calls]
        if absent := missing(calls, replies):
            scripts = loads([calls[n] for n in absent])
            await self._send(connection, [*scripts, *(calls[n].command() for n in absent)])
            loaded = [await self._reply(connection) for _ in scripts]
            answers = [await self._reply(connection) for _ in absent]
            fill(replies, absent, loaded, answers)
        return values(calls, replies)

    async def _reply(self, connection: Any) -> Any:
        try:
            return await read(connection, self.attempt_time)
        except driver.ResponseError as error:
            return error
