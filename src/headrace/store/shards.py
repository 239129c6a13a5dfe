"""Several shards as one store: each call goes where its script's header says, and a shard that is away is left out.

:class:`ShardedStore`, :class:`AsyncShardedStore` and :class:`ShardedEnds` take the places of a store, a store for an
event loop and a listener for ends. Each holds one a shard. Imported only where there are several shards.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from redis import exceptions as driver

from headrace.clock import monotonic
from headrace.errors import StoreUnavailable
from headrace.protocol.script import Call
from headrace.store.connection import ConnectionPool, packed
from headrace.store.end_listener import EndListener, Tell
from headrace.store.raw_connection import RawConnection
from headrace.store.reach import SILENCE, Reach, missing, values
from headrace.store.shard_routes import Asked, ShardRouter
from headrace.store.store import AsyncStore, Store

if TYPE_CHECKING:
    from headrace.protocol.produce import Look
    from headrace.settings import Settings

log = logging.getLogger("headrace.store")

T = TypeVar("T")
R = TypeVar("R", bound=Reach)
AWAY = 5.0  # a shard that did not answer is left out for so long (seconds)
HERE = 0.25  # seconds for the rest of a reply that came while another shard was waited for


class _Trip:
    """Calls of one round trip, by shard. A merged read is sent to no shard that was away a moment ago."""

    def __init__(self, store: ShardedStore | AsyncShardedStore, calls: Sequence[Call[Any]]) -> None:
        parts: list[Store | AsyncStore] = store.parts
        self._store = store
        self._silent: dict[object, StoreUnavailable] = {}
        self._asked = list[Asked]()
        self._failed: dict[int, StoreUnavailable] = {}
        self.found: dict[int, list[Any]] = {}
        self.sent: dict[int, list[Call[Any]]] = {}
        away = {shard for shard, until in store.away.items() if until > monotonic()} if store.away else set[int]()
        away = away if len(away) < len(parts) else set[int]()
        last = 0
        for call in calls:
            one = store.router.asked(call, last)
            self._asked.append(one)
            if one.partial and away:
                one.parts = [part for part in one.parts if part[0] not in away]
            for shard, part in one.parts:
                self.sent.setdefault(shard, []).append(part)
            last = one.parts[0][0] if len(one.parts) == 1 else 0
        # Where the shards were before any was asked: one that moves meanwhile does so to a server that answers.
        self._servers = {shard: parts[shard].server for shard in {0, *self.sent}}
        for shard in self._servers:
            parts[shard].revive = store.revive
        # A job that may live anywhere goes to another shard where this one refuses it, and a list shows the rest. Work
        # that must go to a shard which is away waits for it.
        stores = _hasty(calls[0]) if len(self.sent) == 1 else 0
        self.hasty = 1000 if all(one.partial for one in self._asked) else 0 if away & self.sent.keys() else stores

    def in_vain(self, shard: int) -> bool:
        """Whether the shard's server did not answer for another one: each would wait as long, one after the other."""
        error = self._silent.get(self._servers[shard]) if self._silent else None
        if error is not None:
            self.failed(shard, error)
        return error is not None

    def failed(self, shard: int, error: StoreUnavailable) -> None:
        self._failed[shard] = self._silent[self._servers[shard]] = error
        _leave_out(self._store, shard)

    def values(self) -> list[Any]:
        """Raises StoreUnavailable: a shard that is away was asked for something that the others do not have."""
        # Threads ask one shard after the other: the first that was silent must not be asked by the next call.
        self._store.away |= dict.fromkeys(self._failed, monotonic() + AWAY)
        answers = {shard: iter(values) for shard, values in self.found.items()}
        told = list[Any]()
        for one in self._asked:
            missed = [self._failed[shard] for shard, _ in one.parts if shard in self._failed]
            if missed and (not one.partial or len(missed) == len(one.parts)):
                raise missed[0]
            told.append(one.merged([next(answers[shard]) for shard, _ in one.parts if shard in answers]))
        return told


def _alone(store: ShardedStore | AsyncShardedStore, calls: Sequence[Call[Any]]) -> tuple[int, Call[Any]] | None:
    """One call to one shard, where none was away a moment ago: most are so, and need no trip."""
    if len(calls) != 1 or _unnamed(store) or (store.away and max(store.away.values()) > monotonic()):
        return None
    alone = store.router.alone(calls[0])
    if alone is not None:
        store.parts[alone[0]].revive = store.revive
    return alone


def _hasty(call: Call[Any]) -> int:
    """First attempts whose refusal shows that nothing was stored, so that the job may go to another shard."""
    return int(call.script.name == "enqueue")


def _leave_out(store: ShardedStore | AsyncShardedStore, shard: int) -> None:
    if store.away.get(shard, 0.0) < monotonic():
        text = "shard %d (%s) is away: lists and sums are those of the other shards"
        log.warning(text, shard, store.parts[shard].target.shown, extra={"code": "store.shard_away"})
    store.away[shard] = monotonic() + AWAY


@contextmanager
def _left_out_if_cut(store: AsyncShardedStore, shard: int) -> Generator[None]:
    """Around a call whose caller may give up: the next one must not wait in vain, too."""
    began = monotonic()
    try:
        yield
    except asyncio.CancelledError:
        if monotonic() > began + SILENCE:
            _leave_out(store, shard)
        raise


def _parts(kind: type[R], urls: Sequence[str], settings: Settings, number: str) -> list[R]:
    parts = [kind(url, settings, shard, number) for shard, url in enumerate(urls)]
    for part, url in zip(parts, urls, strict=True):
        part.elsewhere = [other.keys.prefix for other in parts if other.url != url]
    return parts


def _unnamed(store: ShardedStore | AsyncShardedStore) -> bool:
    return store.parts[1].store_id == "" and store.away.get(0, 0.0) < monotonic()


def _name(parts: Sequence[Reach]) -> None:
    for part in parts[1:]:
        part.store_id = parts[0].kept_store_id


class _Begun(msgspec.Struct):
    """Calls that were sent over a connection of a pool, when (monotonic seconds), and why they could not be."""

    pool: ConnectionPool[RawConnection]
    connection: RawConnection
    at: float
    error: Exception | None = None


class _Part(Store):
    """The store of one of several shards: what it sends may be read later, so that several servers work at once."""

    def begin(self, calls: Sequence[Call[Any]]) -> _Begun | None:
        """Send over an idle connection, if there is one; :meth:`finish` or :meth:`drop` must follow."""
        if self._pid != os.getpid() or not self._greeted:
            return None
        now, pool = monotonic(), self._pool
        try:
            connection = pool.idle.pop()
        except IndexError:
            return None
        begun = _Begun(pool, connection, now)
        if connection.end < now:
            self.drop(begun)
            return None
        connection.used = now
        self.sent += 1
        try:
            for piece in packed([call.command() for call in calls]):
                connection.sock.sendall(piece)
        except OSError as error:
            begun.error = error
        except BaseException:
            self.drop(begun)
            raise
        return begun

    def finish(self, begun: _Begun, calls: Sequence[Call[Any]], hasty: int = 0) -> list[Any]:
        """What was begun, as by :meth:`run_all`."""
        connection, left = begun.connection, begun.at + self.attempt_time - monotonic()
        try:
            if begun.error is not None:
                raise begun.error
            connection.sock.settimeout(max(HERE, left))
            replies = [connection.wait() for _ in calls]
            connection.sock.settimeout(self.attempt_time)
            if absent := missing(calls, replies):
                self._load(connection, calls, replies, absent)
            found = values(calls, replies)
        except BaseException as failed:
            self._close_unless_answered(begun.pool, connection, failed)
            if not isinstance(failed, (driver.RedisError, OSError)):
                raise
            error = failed
        else:
            begun.pool.give(connection)
            return found
        return self._repeat(calls, error, begun.at + self.settings.timeout, hasty)

    def drop(self, begun: _Begun) -> None:
        begun.connection.close()
        begun.pool.give(None)


class ShardedStore(Store):
    """A :class:`Store` of several shards; all but calls is that of home. ``away``: until when one is left out."""

    def __init__(self, urls: Sequence[str], settings: Settings, number: str, away: dict[int, float]) -> None:
        super().__init__(urls[0], settings, 0, number)
        self.parts = _parts(_Part, urls, settings, number)
        self.router = ShardRouter([part.keys for part in self.parts])
        self.away = away

    def run_all(self, calls: Sequence[Call[Any]], hasty: int = 0) -> list[Any]:  # noqa: ARG002 - the trip decides
        if (alone := _alone(self, calls)) is not None:
            shard, call = alone
            try:
                found: list[Any] = self.parts[shard].run_all([call], _hasty(call))
            except StoreUnavailable:
                _leave_out(self, shard)
                raise
            return found
        trip = _Trip(self, calls)
        if (error := self._meet()) is not None:
            trip.failed(0, error)
        begun = dict[int, _Begun]()
        try:
            for shard, sent in trip.sent.items() if len(trip.sent) > 1 else ():
                if (one := self.parts[shard].begin(sent)) is not None:
                    begun[shard] = one
            # In one order: threads that held what each other waits for would wait for ever.
            for shard, sent in sorted(trip.sent.items()):
                if not trip.in_vain(shard):
                    self._finish(trip, shard, sent, begun.pop(shard, None))
        finally:
            for shard, one in begun.items():
                self.parts[shard].drop(one)
        return trip.values()

    def _finish(self, trip: _Trip, shard: int, sent: list[Call[Any]], begun: _Begun | None) -> None:
        part = self.parts[shard]
        try:
            trip.found[shard] = part.finish(begun, sent, trip.hasty) if begun else part.run_all(sent, trip.hasty)
        except StoreUnavailable as error:
            trip.failed(shard, error)

    def _meet(self) -> StoreUnavailable | None:
        if _unnamed(self):
            try:
                self.parts[0].run(self.parts[0].greeting())
            except StoreUnavailable as error:
                return error
            _name(self.parts)
        return None

    def run_at(self, shard: int, call: Call[T]) -> T:
        self._meet()
        value: T = self.parts[shard].run(call)
        return value

    def close(self) -> None:
        for part in self.parts:
            part.close()


class AsyncShardedStore(AsyncStore):
    """As :class:`ShardedStore`, for an event loop. A call asks all shards at once."""

    def __init__(self, urls: Sequence[str], settings: Settings, number: str, away: dict[int, float]) -> None:
        super().__init__(urls[0], settings, 0, number)
        self.parts = _parts(AsyncStore, urls, settings, number)
        self.router = ShardRouter([part.keys for part in self.parts])
        self.away = away

    async def run_all(self, calls: Sequence[Call[Any]], hasty: int = 0) -> list[Any]:  # noqa: ARG002 - as above
        if (alone := _alone(self, calls)) is not None:
            shard, call = alone
            try:
                with _left_out_if_cut(self, shard):
                    found: list[Any] = await self.parts[shard].run_all([call], _hasty(call))
            except StoreUnavailable:
                _leave_out(self, shard)
                raise
            return found
        trip = _Trip(self, calls)
        if (error := await self._meet()) is not None:
            trip.failed(0, error)

        async def ask(shard: int, sent: list[Call[Any]]) -> None:
            if trip.in_vain(shard):
                return
            try:
                with _left_out_if_cut(self, shard):
                    trip.found[shard] = await self.parts[shard].run_all(sent, trip.hasty)
            except StoreUnavailable as error:
                trip.failed(shard, error)

        await asyncio.gather(*(ask(shard, sent) for shard, sent in trip.sent.items()))
        return trip.values()

    async def _meet(self) -> StoreUnavailable | None:
        if _unnamed(self):
            try:
                with _left_out_if_cut(self, 0):
                    await self.parts[0].run(self.parts[0].greeting())
            except StoreUnavailable as error:
                return error
            _name(self.parts)
        return None

    async def close(self) -> None:
        for part in self.parts:
            await part.close()


class ShardedEnds:
    """A listener a shard, which connects when a caller waits there first."""

    def __init__(self, urls: Sequence[str], settings: Settings, number: str, _: dict[int, float]) -> None:
        self._parts = _parts(EndListener, urls, settings, number)
        self._router = ShardRouter([part.keys for part in self._parts])
        self.revive: Any = None

    @property
    def fault(self) -> str:
        return next((part.fault for part in self._parts if part.fault), "")

    @property
    def round_trips(self) -> int:
        return sum(part.round_trips for part in self._parts)

    def add(self, looks: Sequence[tuple[str, Look]], tell: Tell) -> None:
        for shard, mine in groupby(
            sorted(looks, key=lambda row: self._router.of(row[0])), lambda row: self._router.of(row[0])
        ):
            self._parts[shard].revive = self.revive
            self._parts[shard].add(list(mine), tell)

    def follow(self, id: str, look: Look, tell: Tell) -> None:
        part = self._parts[self._router.of(id)]
        part.revive = self.revive
        part.follow(id, look, tell)

    def remove(self, ids: Sequence[str], tell: Tell) -> None:
        for part in self._parts:
            part.remove(ids, tell)

    def first(self) -> bool:
        return True

    def second(self) -> None:
        """As :meth:`first`: the stores' own connections serve all who ask."""

    def close(self) -> None:
        for part in self._parts:
            part.close()
