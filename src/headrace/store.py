"""Store and AsyncStore: send a Call, read its reply. The only code that talks to the server for producers and people.

They differ in their driver's verbs only. Both repeat a call whose connection failed, with a jittered back-off, until
the settings' ``timeout``: every call is safe to repeat (see docs/design/store.md). Both may be shared by threads or
tasks, and both begin anew in a forked child.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from redis import exceptions as driver

from headrace.connection import aconnect, advice, check_server, connect, packed, pause_before, verdict
from headrace.errors import SchemaMismatch, StoreUnavailable, UrlError
from headrace.keys import OLDEST, SCHEMA, Keys, keys_of
from headrace.protocol.admin import Greeting, greet
from headrace.protocol.produce import Watched, watch
from headrace.script import Call
from headrace.settings import Settings, microseconds
from headrace.url import Target, parse

if TYPE_CHECKING:
    from headrace.workflow import WorkflowState

T = TypeVar("T")
# What a waiter is told: of a job, or of a workflow (None: nothing is stored).
Seen = TypeVar("Seen", Watched, "WorkflowState | None")
Watch = Callable[[Keys, str, int], Call[Seen]]

# A waiter asks again this often (seconds), in case an announcement was lost with its connection.
RECHECK = 5.0
# A private server is looked after at this many failures in a row.
REVIVE_AT = 2


class Slots:
    """Producer slots: a name and the number of its next request.

    A slot is used by one call at a time, so the server can tell a repeated request from a new one by its number alone,
    whatever happened to the job since.
    """

    def __init__(self) -> None:
        self._free: deque[tuple[str, int]] = deque()
        self._pid = os.getpid()

    def take(self) -> tuple[str, int]:
        """A slot for one request, and the request's number."""
        if self._pid != os.getpid():
            self._free, self._pid = deque(), os.getpid()
        try:
            return self._free.pop()
        except IndexError:
            return os.urandom(9).hex(), 1

    def answered(self, sender: str, number: int) -> None:
        """The slot may serve the next request. One whose request failed stays out of use: its fate is unknown."""
        self._free.append((sender, number + 1))


def _check_schema(found: Greeting, target: Target) -> None:
    if found.version > SCHEMA:
        raise SchemaMismatch(
            f"{target.shown} holds schema {found.version}, written by a newer Headrace; this one knows {SCHEMA}: "
            f"upgrade headrace here"
        )
    if found.moving:
        raise SchemaMismatch(
            f"{target.shown} is being migrated, or was until that was interrupted: wait for its end, or run headrace "
            f"migrate, which goes on where it was"
        )
    if found.version < OLDEST:
        raise SchemaMismatch(
            f"{target.shown} holds schema {found.version}, written by an older Headrace; this one needs {OLDEST}: stop "
            f"the programs that use it and run headrace migrate"
        )


class _Common:
    """What both stores know before they connect."""

    def __init__(self, url: str, settings: Settings) -> None:
        self.url = url
        self.target = parse(url)
        self.settings = settings
        self.keys: Keys = keys_of(settings.namespace)
        self.slots = Slots()
        self.round_trips: int = 0
        self._checked = False
        # Brings a private server back whose guard was killed or whose directory was removed, and says where it is;
        # None where the server is somebody else's to run.
        self.revive: Callable[[], str] | None = None

    def _try_to_revive(self, attempt: int) -> None:
        # Once, and not at the first failure: a server that restarts by itself needs no help.
        if attempt == REVIVE_AT and self.revive is not None and (url := self.revive()) != self.url:
            self.url, self.target, self._checked = url, parse(url), False

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self.target.shown} did not answer within {self.settings.timeout:g} s ({error}): "
            f"{advice(error, self.target)} The call may be repeated"
        )

    def _give_up_or_wait(self, error: Exception, attempt: int, deadline: float, doing: str) -> float:
        """Seconds to wait before the next attempt; 0 to repeat at once.

        Raises:
            HeadraceError: there is no point in repeating.
        """
        word = verdict(error, self.target, doing)
        if isinstance(word, UrlError) and self.revive is not None and attempt <= REVIVE_AT:
            # A private server knows its own password: this is another one, in a directory that was made anew.
            word = "again"
        if isinstance(word, Exception):
            raise word from None
        if time.monotonic() >= deadline:
            raise self._unavailable(error) from None
        return 0.0 if word == "load" else pause_before(attempt, random.random())


def _unfinished(seen: Watched | WorkflowState | None) -> bool:
    state = seen.state if isinstance(seen, Watched) else seen
    return state is not None and not state.final


def _share(end: float | None) -> float:
    """Seconds of one wait for an announcement, of those that are left until ``end``."""
    return RECHECK if end is None else max(0.0, min(RECHECK, end - time.monotonic()))


def _doing(calls: Sequence[Call[Any]]) -> str:
    return "+".join(dict.fromkeys(call.script.name for call in calls))


def _missing(replies: Sequence[Any]) -> list[int]:
    """Which calls' scripts the server does not know."""
    return [n for n, reply in enumerate(replies) if isinstance(reply, driver.NoScriptError)]


def _loads(calls: Sequence[Call[Any]]) -> list[tuple[str, str, str]]:
    """The commands that make the server know their scripts, one for each script."""
    return [("SCRIPT", "LOAD", text) for text in dict.fromkeys(call.script.text for call in calls)]


def _fill(replies: list[Any], missing: Sequence[int], loaded: Sequence[Any], answers: Sequence[Any]) -> None:
    """Put answers in their places; where a script could not be loaded, that says more than that it is missing."""
    refused = next((reply for reply in loaded if isinstance(reply, driver.ResponseError)), None)
    for n, answer in zip(missing, answers, strict=True):
        replies[n] = refused if refused is not None and isinstance(answer, driver.NoScriptError) else answer


def _values(calls: Sequence[Call[Any]], replies: Sequence[Any]) -> list[Any]:
    """Replies as values. All were read before an error is raised: one left unread would answer the next caller."""
    for reply in replies:
        if isinstance(reply, driver.ResponseError):
            raise reply
    return [call.parse(reply) for call, reply in zip(calls, replies, strict=True)]


class Store(_Common):
    """The store for threads.

    Attributes:
        target: where it is.
        keys: of its shard.
        slots: for enqueues.
        round_trips: requests sent so far.
    """

    def __init__(self, url: str, settings: Settings) -> None:
        super().__init__(url, settings)
        self._idle: deque[Any] = deque()
        self._pid = os.getpid()

    def run(self, call: Call[T]) -> T:
        """Send one call.

        Raises:
            StoreUnavailable: no answer within the settings' ``timeout``.
            StoreFull: the server refused to store.
            ServerError: it answered with another error.

        Cost: one round trip.
        """
        value: T = self.run_all([call])[0]
        return value

    def run_all(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Send several calls in one round trip; they are applied in order, but not as one.

        Raises: as :meth:`run`.
        """
        deadline, attempt = time.monotonic() + self.settings.timeout, 0
        while True:
            try:
                connection = self._take()
                # Not a context manager: an idle program pays for each function that it calls before it sends.
                try:
                    values = self._exchange(connection, calls)
                except BaseException as error:
                    self._drop(connection, error)
                    raise
                self._idle.append(connection)
                return values
            except (driver.RedisError, OSError) as error:
                attempt += 1
                time.sleep(self._give_up_or_wait(error, attempt, deadline, _doing(calls)))
                self._try_to_revive(attempt)

    def wait_final(self, id: str, timeout: float | None) -> Watched:
        """A job's end, or its unfinished state when ``timeout`` seconds have passed. Waits; does not poll.

        Cost: three round trips, and one more each five seconds of waiting.
        """
        return self.wait_end(watch, id, timeout)

    def wait_end(self, look: Watch[Seen], id: str, timeout: float | None) -> Seen:
        """The same for whatever ``look`` watches: a job, or a workflow."""
        end = None if timeout is None else time.monotonic() + timeout
        seen, attempt = self.run(look(self.keys, id, 0)), 0
        while _unfinished(seen) and (end is None or time.monotonic() < end):
            try:
                connection = self._take()
                try:
                    self._send(connection, [("SUBSCRIBE", self.keys.done(id))])
                    connection.read_response()
                    pause, attempt = _share(end), 0
                    seen = self.run(look(self.keys, id, microseconds(pause + 60)))
                    if _unfinished(seen):
                        connection.can_read(timeout=pause)
                finally:
                    connection.disconnect()
            except (driver.RedisError, OSError) as error:
                # Without a pause, a server that takes no more connections would be asked as fast as it can refuse.
                attempt += 1
                time.sleep(min(self._give_up_or_wait(error, attempt, math.inf, "SUBSCRIBE"), _share(end)))
            seen = self.run(look(self.keys, id, 0))
        return seen

    def close(self) -> None:
        """Close the idle connections; the store may be used again."""
        while self._idle:
            self._idle.pop().disconnect()

    def _take(self) -> Any:
        """A connection that nobody else uses."""
        if self._pid != os.getpid():
            # The parent's sockets are not ours: two processes that read one stream garble both.
            self._idle, self._pid = deque(), os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect()

    def _drop(self, connection: Any, error: BaseException) -> None:
        """Close a connection, unless the error was the server's answer and another will do no better."""
        if isinstance(error, driver.ResponseError) and verdict(error, self.target, "") != "again":
            self._idle.append(connection)
        else:
            connection.disconnect()

    def _connect(self) -> Any:
        connection: Any = connect(self.target, self.settings.timeout)
        try:
            self._greet(connection)
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def _greet(self, connection: Any) -> None:
        if self._checked:
            return
        self._send(connection, [("INFO", "server"), ("INFO", "memory")])
        info = b"\n".join([connection.read_response(), connection.read_response()])
        check_server(info.decode("utf-8", "replace"), self.target, self.settings.allow_eviction)
        _check_schema(self._exchange(connection, [greet(self.keys, SCHEMA)])[0], self.target)
        self._checked = True

    def _send(self, connection: Any, commands: Sequence[Sequence[Any]]) -> None:
        self.round_trips += 1
        connection.send_packed_command(packed(commands), check_health=False)

    def _exchange(self, connection: Any, calls: Sequence[Call[Any]]) -> list[Any]:
        self._send(connection, [call.command() for call in calls])
        replies = [self._reply(connection) for _ in calls]
        if missing := _missing(replies):
            scripts = _loads([calls[n] for n in missing])
            self._send(connection, [*scripts, *(calls[n].command() for n in missing)])
            loaded, answers = [self._reply(connection) for _ in scripts], [self._reply(connection) for _ in missing]
            _fill(replies, missing, loaded, answers)
        return _values(calls, replies)

    def _reply(self, connection: Any) -> Any:
        try:
            return connection.read_response()
        except driver.ResponseError as error:
            return error


class AsyncStore(_Common):
    """The store for one event loop; see :class:`Store` for each verb's guarantee, errors and cost."""

    def __init__(self, url: str, settings: Settings) -> None:
        super().__init__(url, settings)
        self._idle: deque[Any] = deque()
        self._home: tuple[int, asyncio.AbstractEventLoop | None] = (os.getpid(), None)
        self._keeper: AsyncIterator[None] | None = None
        self._parents: list[Any] = []

    async def run(self, call: Call[T]) -> T:
        value: T = (await self.run_all([call]))[0]
        return value

    async def run_all(self, calls: Sequence[Call[Any]]) -> list[Any]:
        deadline, attempt = time.monotonic() + self.settings.timeout, 0
        while True:
            try:
                async with self._connection() as connection:
                    return await self._exchange(connection, calls)
            except (driver.RedisError, OSError) as error:
                attempt += 1
                await asyncio.sleep(self._give_up_or_wait(error, attempt, deadline, _doing(calls)))
                await asyncio.to_thread(self._try_to_revive, attempt)

    async def wait_final(self, id: str, timeout: float | None) -> Watched:
        return await self.wait_end(watch, id, timeout)

    async def wait_end(self, look: Watch[Seen], id: str, timeout: float | None) -> Seen:
        end = None if timeout is None else time.monotonic() + timeout
        seen, attempt = await self.run(look(self.keys, id, 0)), 0
        while _unfinished(seen) and (end is None or time.monotonic() < end):
            try:
                async with self._connection(keep=False) as connection:
                    await self._send(connection, [("SUBSCRIBE", self.keys.done(id))])
                    await connection.read_response()
                    pause, attempt = _share(end), 0
                    seen = await self.run(look(self.keys, id, microseconds(pause + 60)))
                    if _unfinished(seen):
                        with contextlib.suppress(driver.TimeoutError):
                            await connection.read_response(timeout=pause, disconnect_on_error=False)
            except (driver.RedisError, OSError) as error:
                attempt += 1
                await asyncio.sleep(min(self._give_up_or_wait(error, attempt, math.inf, "SUBSCRIBE"), _share(end)))
            seen = await self.run(look(self.keys, id, 0))
        return seen

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().disconnect()

    @contextlib.asynccontextmanager
    async def _connection(self, *, keep: bool = True) -> AsyncGenerator[Any]:
        home = (os.getpid(), asyncio.get_running_loop())
        if self._home != home:
            await self._settle_in(home)
        # Not in a handler of IndexError: that would take the place of what a failed connection came from.
        connection = self._idle.pop() if self._idle else await self._connect()
        try:
            yield connection
        except driver.ResponseError as error:
            if verdict(error, self.target, "") == "again":
                await connection.disconnect()
            else:
                self._idle.append(connection)
            raise
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        if keep:
            self._idle.append(connection)
        else:
            await connection.disconnect()

    async def _connect(self) -> Any:
        connection: Any = await aconnect(self.target, self.settings.timeout)
        try:
            await self._greet(connection)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def _settle_in(self, home: tuple[int, asyncio.AbstractEventLoop | None]) -> None:
        """Begin anew in this process and loop: a connection belongs to those that made it."""
        if self._home[0] != home[0]:
            # Kept, never closed: a fork shares its parent's epoll, where closing would make the parent deaf.
            self._parents.append((self._idle, self._keeper))
        self._idle, self._home = deque(), home
        self._keeper = self._keep(self._idle)
        await anext(self._keeper)

    async def _keep(self, idle: deque[Any]) -> AsyncGenerator[None]:
        """Close the idle connections when their loop ends: ``asyncio.run`` closes generators before it goes."""
        try:
            yield
        finally:
            while idle:
                await idle.pop().disconnect()

    async def _greet(self, connection: Any) -> None:
        if self._checked:
            return
        await self._send(connection, [("INFO", "server"), ("INFO", "memory")])
        info = b"\n".join([await connection.read_response(), await connection.read_response()])
        check_server(info.decode("utf-8", "replace"), self.target, self.settings.allow_eviction)
        _check_schema((await self._exchange(connection, [greet(self.keys, SCHEMA)]))[0], self.target)
        self._checked = True

    async def _send(self, connection: Any, commands: Sequence[Sequence[Any]]) -> None:
        self.round_trips += 1
        await connection.send_packed_command(packed(commands), check_health=False)

    async def _exchange(self, connection: Any, calls: Sequence[Call[Any]]) -> list[Any]:
        await self._send(connection, [call.command() for call in calls])
        replies = [await self._reply(connection) for _ in calls]
        if missing := _missing(replies):
            scripts = _loads([calls[n] for n in missing])
            await self._send(connection, [*scripts, *(calls[n].command() for n in missing)])
            loaded = [await self._reply(connection) for _ in scripts]
            answers = [await self._reply(connection) for _ in missing]
            _fill(replies, missing, loaded, answers)
        return _values(calls, replies)

    async def _reply(self, connection: Any) -> Any:
        try:
            return await connection.read_response()
        except driver.ResponseError as error:
            return error
