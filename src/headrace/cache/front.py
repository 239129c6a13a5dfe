"""``app.cache``: values that are read often and changed rarely, kept in the process until the server says otherwise.

Owns the verbs and the counters. Each verb is written once, as steps that a driver for threads and one for event loops
carry out. A hit takes no step: it looks into a dictionary.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

import msgspec

from headrace.cache import link
from headrace.cache.drive import Client, Depart, Driver, Make, Start, Steps
from headrace.cache.frozen import freeze
from headrace.cache.link import Flight
from headrace.cache.listener import Listener
from headrace.cache.shelf import Bounds, Eviction
from headrace.cache.statistics import Statistics
from headrace.codec import decode, encode
from headrace.errors import OptionsError, StoreUnavailable
from headrace.keys import check_name
from headrace.protocol import cache as protocol
from headrace.script import Call
from headrace.settings import Duration, seconds

log = logging.getLogger("headrace.cache")

MAX_NAME = 512
MAX_TAGS = 8


class _Absent:
    def __repr__(self) -> str:
        return "<absent>"


# What a look yields where there is no value: None is a value like any other.
ABSENT: Final[Any] = _Absent()


class Cache:
    """One application's cached values.

    Threads, event loops and forked children of a process may all use it. Nothing connects, and no thread exists,
    before the first value is asked for.
    """

    def __init__(self, client: Client, *, protocols: Sequence[link.Protocol] = (3, 2)) -> None:
        """Use ``app.cache``.

        Args:
            protocols: RESP versions to hear the server's announcements over, the first that works.
        """
        settings = client.settings
        self._settings = settings
        self._keys = client.keys
        bounds = Bounds(settings.cache_entries, settings.cache_bytes, cast(Eviction, settings.cache_eviction))
        self._listener = Listener(
            client.url,
            self._keys,
            bounds,
            timeout=settings.timeout,
            silence=settings.cache_silence,
            protocols=protocols,
        )
        self._driver = Driver(client, self._listener)
        self._values = self._listener.shelf.values
        self._hits = self._misses = self._faults = 0

    def get(
        self,
        name: str,
        default: Any = None,
        make: Callable[[], Any] | None = None,
        ttl: Duration | None = None,
        tags: Sequence[str] = (),
    ) -> Any:
        """The value of this name; without one, what ``make`` computes, or else ``default``.

        Dicts and lists are shared by the whole process and refuse to be changed: change a copy. What ``make``
        returns is stored with ``ttl`` and ``tags``, unless the name was written or deleted, or one of its tags,
        since ``make`` was called: it may have seen what was true before. A server that cannot be reached counts as
        one that has no value; ``statistics().faults`` counts those reads.

        Raises:
            OptionsError: the name or a tag cannot be used.
            ArgumentError, PayloadTooLarge: what ``make`` returned cannot be stored.

        Cost: none when the process has the value, or knows that there is none; else one round trip. When ``make``
        is called, three more.
        """
        # Nothing is keyword-only here: Python looks each absent one up in a dictionary, which doubles what a hit costs.
        try:
            value = self._values[name]
        except KeyError:
            return self._driver.run(self._find(name, default, make, ttl, tags))
        self._hits += 1
        return value

    async def aget(
        self,
        name: str,
        default: Any = None,
        make: Callable[[], Awaitable[Any] | Any] | None = None,
        ttl: Duration | None = None,
        tags: Sequence[str] = (),
    ) -> Any:
        """See :meth:`get`; ``make`` may be a coroutine function."""
        try:
            value = self._values[name]
        except KeyError:
            return await self._driver.arun(self._find(name, default, make, ttl, tags))
        self._hits += 1
        return value

    def set(self, name: str, value: Any, *, ttl: Duration | None = None, tags: Sequence[str] = ()) -> None:
        """Store a value: what MessagePack can carry, None included.

        When this returns, no reader of this process gets the value before it; readers elsewhere, within milliseconds.

        Args:
            ttl: how long it stays; without one, the setting ``cache_ttl`` (7 days).
            tags: at most 8; see :meth:`delete_tag`.

        Raises:
            OptionsError: the name, a tag or ``ttl`` cannot be used.
            ArgumentError, PayloadTooLarge: the value cannot be stored.
            StoreUnavailable, StoreFull: as ``enqueue``; whether it was stored is not known.

        Cost: one round trip.
        """
        self._driver.run(self._store(name, value, ttl, tags))

    async def aset(self, name: str, value: Any, *, ttl: Duration | None = None, tags: Sequence[str] = ()) -> None:
        """See :meth:`set`."""
        await self._driver.arun(self._store(name, value, ttl, tags))

    def delete(self, *names: str) -> int:
        """Delete values; how many there were. What somebody is computing for one of these names is not stored.

        After a database transaction, delete when it is committed: a reader who computes from the state before it
        cannot store that any more.

        Raises:
            OptionsError: a name cannot be used.
            StoreUnavailable: no answer: the values may still be there.

        Cost: one round trip per 1,000 names.
        """
        return self._driver.run(self._delete(names))

    async def adelete(self, *names: str) -> int:
        """See :meth:`delete`."""
        return await self._driver.arun(self._delete(names))

    def delete_tag(self, tag: str) -> int:
        """Delete all values that have this tag; how many there were. Computations under way are not stored.

        Cost: one round trip per 1,000 values.
        """
        return self._driver.run(self._drop(check_name("tag", tag)))

    async def adelete_tag(self, tag: str) -> int:
        """See :meth:`delete_tag`."""
        return await self._driver.arun(self._drop(check_name("tag", tag)))

    def clear(self) -> int:
        """Delete all values of the namespace's cache; how many there were. Cost: one round trip per 1,000 values."""
        return self._driver.run(self._drop(protocol.ALL))

    async def aclear(self) -> int:
        """See :meth:`clear`."""
        return await self._driver.arun(self._drop(protocol.ALL))

    def refresh(self) -> None:
        """Drop this process's copies only; each is read again when it is asked for. Cost: none."""
        self._listener.forget_all()

    def peek(self, name: str) -> Any:
        """The process's copy, or ``headrace.cache.ABSENT``. Cost: none."""
        try:
            value = self._values[name]
        except KeyError:
            return ABSENT
        self._hits += 1
        return value

    def watch(self, name: str, heard: Callable[[], object]) -> None:
        """Call ``heard`` whenever the process's copy of a value goes since it may have changed; for the engine itself.

        It is called by the listening thread, and must neither wait nor use the cache. One watcher a name; a forked
        child has none. Only a value that was read, and kept, is heard of.

        Cost: none.
        """
        self._listener.watchers[_check(name)] = heard

    def statistics(self) -> Statistics:
        """Counters of this process since it started, was forked, or :meth:`reset_statistics`. Cost: none.

        Hits are counted without a lock: beside busy threads a few may be missed.
        """
        listener, shelf = self._listener, self._listener.shelf
        reads = self._hits + self._misses
        return Statistics(
            hits=self._hits,
            misses=self._misses,
            hit_ratio=round(self._hits / reads, 2) if reads else None,
            used=len(shelf),
            capacity=shelf.bounds.entries,
            utilization=round(len(shelf) / shelf.bounds.entries, 2),
            bytes=shelf.bytes,
            capacity_bytes=shelf.bounds.bytes,
            evicted=shelf.evicted,
            announced=listener.announced,
            epochs=listener.epochs,
            faults=self._faults,
            healthy=listener.armed,
            fault=listener.fault,
        )

    def reset_statistics(self) -> None:
        """Count from zero again."""
        self._hits = self._misses = self._faults = 0
        self._listener.shelf.evicted = self._listener.announced = 0

    def close(self) -> None:
        """End the thread and close the connections; the cache may be used again. Closing twice is fine."""
        self._listener.close()

    # One description of each verb; what it yields, a driver does.

    def _find(
        self, name: str, default: Any, make: Callable[[], Any] | None, ttl: Duration | None, tags: Sequence[str]
    ) -> Steps[Any]:
        _check(name)
        if name in self._listener.shelf.absent:
            self._hits += 1
            self._listener.shelf.visit(name)
            found = ABSENT
        else:
            self._misses += 1
            found = yield from self._look(name)
        if found is not ABSENT:
            return found
        return default if make is None else (yield from self._fill(name, make, ttl, tags))

    def _look(self, name: str) -> Steps[Any]:
        """What the server has, kept in the process if changes of it will be heard of."""
        flight: Flight | None = yield Depart(name)
        if flight is None and not self._listener.armed:
            yield Start()
            flight = yield Depart(name)
        if flight is not None:
            try:
                if not flight.failed:
                    return self._arrive(flight)
            finally:
                self._listener.end(flight)
        stored = yield from self._attempt(protocol.read(self._keys, name))
        return ABSENT if stored is None else self._decoded(name, stored)[0]

    def _arrive(self, flight: Flight) -> Any:
        stored, left = flight.replies
        now = flight.sent
        end = now + self._settings.cache_age
        if not isinstance(stored, bytes):
            if self._settings.cache_absent:
                self._listener.keep_absent(flight, end)
            return ABSENT
        value, size = self._decoded(flight.name, stored)
        # -2: it ended between the two commands; -1: alien, without an end.
        if value is not ABSENT and left != -2:
            self._listener.keep(flight, value, size, end if left < 0 else min(end, now + left / 1000))
        return value

    def _decoded(self, name: str, stored: bytes) -> tuple[Any, int]:
        try:
            value, size = freeze(decode(protocol.payload(stored)))
            return value, size + len(stored)
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            self._faults += 1
            log.warning("the cached value of %r cannot be read and counts as absent: %s", name, error)
            return ABSENT, 0

    def _attempt(self, call: Call[Any]) -> Steps[Any]:
        """A call that a reader can do without: None where the server cannot be reached."""
        if self._listener.unreachable:
            self._faults += 1
            return None
        try:
            return (yield call)
        except StoreUnavailable:
            self._faults += 1
            return None

    def _fill(self, name: str, make: Callable[[], Any], ttl: Duration | None, tags: Sequence[str]) -> Steps[Any]:
        length, labels = self._ttl(ttl), _tags(tags)
        lease = yield from self._attempt(protocol.lease(self._keys, name))
        if lease == "":
            # Somebody stored it since we looked.
            self._listener.forget([name])
            found = yield from self._look(name)
            if found is not ABSENT:
                return found
            # It ended meanwhile, or cannot be read: then it must not stand in the way of one that can.
            yield from self._attempt(protocol.delete(self._keys, [name]))
            lease = yield from self._attempt(protocol.lease(self._keys, name))
        value = yield Make(make)
        data = encode(value, self._settings.max_result, f"the value of {name!r}")
        if lease:
            yield from self._attempt(protocol.store(self._keys, name, data, length, labels, lease))
            self._listener.forget([name])
            found = yield from self._look(name)
            if found is not ABSENT:
                return found
        return freeze(decode(data))[0]

    def _store(self, name: str, value: Any, ttl: Duration | None, tags: Sequence[str]) -> Steps[None]:
        _check(name)
        data = encode(value, self._settings.max_result, f"the value of {name!r}")
        try:
            yield protocol.store(self._keys, name, data, self._ttl(ttl), _tags(tags))
        finally:
            self._listener.forget([name])

    def _delete(self, names: Sequence[str]) -> Steps[int]:
        count = 0
        for first in range(0, len(names), protocol.CHUNK):
            chunk = [_check(name) for name in names[first : first + protocol.CHUNK]]
            try:
                count += yield protocol.delete(self._keys, chunk)
            finally:
                self._listener.forget(chunk)
        return count

    def _drop(self, tag: str) -> Steps[int]:
        dropped: protocol.Dropped = yield protocol.drop(self._keys, tag, True)
        # Bounded by what was there at the start: values that come faster than they go must not hold it for ever.
        count, goal = len(dropped.names), len(dropped.names) + dropped.left
        self._listener.forget(dropped.names)
        while dropped.left and count < goal:
            dropped = yield protocol.drop(self._keys, tag, False)
            self._listener.forget(dropped.names)
            count += len(dropped.names)
        if tag == protocol.ALL:
            self._listener.forget_all()
        return count

    def _ttl(self, ttl: Duration | None) -> float:
        return self._settings.cache_ttl if ttl is None else seconds(ttl, "ttl", zero=False)


def _check(name: Any) -> str:
    """A name that may be cached under. Raises OptionsError."""
    if not isinstance(name, str) or not name:
        raise OptionsError(f"a cached value's name is a text that is not empty, not {name!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise OptionsError(f"the name {name!r} is no valid Unicode: give another") from None
    if size > MAX_NAME:
        raise OptionsError(
            f"a cached value's name takes at most {MAX_NAME} bytes, {name[:40]!r}… takes {size}: hash what is long in "
            f"it"
        )
    return name


def _tags(tags: Sequence[str]) -> list[str]:
    if isinstance(tags, str) or len(tags) > MAX_TAGS:
        raise OptionsError(f"tags is a list of at most {MAX_TAGS} names, not {tags!r}")
    return [check_name("tag", tag) for tag in dict.fromkeys(tags)]
