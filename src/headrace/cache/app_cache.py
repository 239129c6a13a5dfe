"""``app.cache``: values that are read often and changed rarely, kept in the process until the server says otherwise.

A hit reads a dictionary. Everything else is a verb in ``values``, written once for threads and for event
loops.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from headrace.cache.fill_leases import FillLeases
from headrace.cache.listener import Listener
from headrace.cache.local_store import Bounds, Eviction, Statistics
from headrace.cache.values import ABSENT, Driver, Values
from headrace.model.ids import check_name
from headrace.protocol import cache_calls as protocol
from headrace.settings import Duration
from headrace.store.client import Client
from headrace.store.surroundings import in_forks
from headrace.store.url import located


class Cache:
    """One application's cached values.

    Threads, event loops and forked children of a process may all use it. Nothing connects, and no thread exists,
    before the first value is asked for.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.types = client.types
        self.follow()
        in_forks(self)

    def begin_anew(self) -> None:
        """Count from zero, as a forked child must; its listener forgets the values."""
        self.reset_statistics()

    def follow(self) -> None:
        client, settings = self._client, self._client.settings
        bounds = Bounds(settings.cache_entries, settings.cache_bytes, cast(Eviction, settings.cache_eviction))
        self._listener = Listener(
            lambda: located(client.url(), settings),
            client.keys,
            bounds,
            timeout=settings.timeout,
            silence=settings.cache_heartbeat_timeout,
        )
        fills = FillLeases()
        in_forks(fills)
        self._driver = Driver(client, self._listener, fills)
        self._steps = Values(settings, client.keys, client.types, self._listener, fills)
        self._values = self._listener.local.values
        self._hits = 0

    def get(
        self,
        name: str,
        default: Any = None,
        make: Callable[[], Any] | None = None,
        ttl: Duration | None = None,
        tags: Sequence[str] = (),
        wait: Duration | None = None,
    ) -> Any:
        """The value of this name; without one, what ``make`` computes, or else ``default``.

        Dicts and lists are shared by the whole process and refuse to be changed: change a copy. What ``make``
        returns is stored with ``ttl`` and ``tags``, unless the name was written or deleted, or one of its tags,
        since ``make`` was called: it may have seen what was true before. A server that cannot be reached, or whose
        memory is full, counts as one that has no value; ``statistics().faults`` counts those reads.

        One reader of a process calls ``make``. The threads and coroutines that ask for the name meanwhile wait for
        that one, and get what it returned or the exception that it raised. If that reader was interrupted or
        cancelled, or the value was changed meanwhile, the next of them calls ``make``.

        Args:
            wait: seconds that another *process* which computes the value is waited for. When they are over one more
                process computes it, too, and so on; without ``wait``, each computes at once. A process whose ``make``
                raised is not waited for any longer.

        Raises:
            OptionsError: the name, a tag, ``ttl``, ``wait`` or ``make`` cannot be used.
            ArgumentError: what ``make`` returned cannot be stored, or would come back as another type.
            PayloadTooLarge: what ``make`` returned is too large.

        Cost: none when the process has the value, or knows that there is none; else one round trip. When ``make``
        is called, three more.
        """
        # Nothing is keyword-only here: Python looks each absent one up in a dictionary, which doubles what a hit costs.
        try:
            value = self._values[name]
        except KeyError:
            return self._driver.run(self._steps.find(name, default, make, ttl, tags, wait))
        self._hits += 1
        return value

    async def aget(
        self,
        name: str,
        default: Any = None,
        make: Callable[[], Awaitable[Any] | Any] | None = None,
        ttl: Duration | None = None,
        tags: Sequence[str] = (),
        wait: Duration | None = None,
    ) -> Any:
        """See :meth:`get`; ``make`` may be a coroutine function."""
        try:
            value = self._values[name]
        except KeyError:
            return await self._driver.arun(self._steps.find(name, default, make, ttl, tags, wait))
        self._hits += 1
        return value

    def set(self, name: str, value: Any, *, ttl: Duration | None = None, tags: Sequence[str] = ()) -> None:
        """Store a value: None, numbers, texts, bytes, times in UTC, and lists and dicts of them.

        When this returns, no reader of this process gets the value before it; readers elsewhere, within milliseconds.

        Args:
            ttl: how long it stays; without one, the setting ``cache_ttl`` (7 days).
            tags: at most 8; see :meth:`delete_tag`.

        Raises:
            OptionsError: the name, a tag or ``ttl`` cannot be used.
            ArgumentError: the value cannot be stored, or would come back as another type, a tuple as a list.
            PayloadTooLarge: it is too large.
            StoreUnavailable, StoreFull: as ``enqueue``; whether it was stored is not known.

        Cost: one round trip.
        """
        self._driver.run(self._steps.store(name, value, ttl, tags))

    async def aset(self, name: str, value: Any, *, ttl: Duration | None = None, tags: Sequence[str] = ()) -> None:
        """See :meth:`set`."""
        await self._driver.arun(self._steps.store(name, value, ttl, tags))

    def delete(self, *names: str) -> int:
        """Delete values; how many there were. A value that a caller is computing for one of these names is not stored.

        After a database transaction, delete when it is committed: a reader who computes from the state before it
        cannot store that any more.

        Raises:
            OptionsError: a name cannot be used.
            StoreUnavailable: no answer: the values may still be there.

        Cost: one round trip per 1,000 names.
        """
        return self._driver.run(self._steps.delete(names))

    async def adelete(self, *names: str) -> int:
        """See :meth:`delete`."""
        return await self._driver.arun(self._steps.delete(names))

    def delete_tag(self, tag: str) -> int:
        """Delete all values that have this tag; how many there were. Running fills are not stored.

        Cost: one round trip per 1,000 values.
        """
        return self._driver.run(self._steps.drop(check_name("tag", tag)))

    async def adelete_tag(self, tag: str) -> int:
        """See :meth:`delete_tag`."""
        return await self._driver.arun(self._steps.drop(check_name("tag", tag)))

    def clear(self) -> int:
        """Delete all values of the namespace's cache; how many there were. Cost: one round trip per 1,000 values."""
        return self._driver.run(self._steps.drop(protocol.ALL))

    async def aclear(self) -> int:
        """See :meth:`clear`."""
        return await self._driver.arun(self._steps.drop(protocol.ALL))

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

    def statistics(self) -> Statistics:
        """Counters of this process since it started, was forked, or :meth:`reset_statistics`. Cost: none.

        Hits are counted without a lock: beside busy threads a few may be missed.
        """
        listener, local = self._listener, self._listener.local
        hits, misses = self._hits + self._steps.hits, self._steps.misses
        reads = hits + misses
        return Statistics(
            hits=hits,
            misses=misses,
            hit_ratio=round(hits / reads, 2) if reads else None,
            used=len(local),
            capacity=local.bounds.entries,
            utilization=round(len(local) / local.bounds.entries, 2),
            bytes=local.bytes,
            capacity_bytes=local.bounds.bytes,
            evicted=local.evicted,
            announced=listener.announced,
            epochs=listener.epochs,
            faults=self._steps.faults,
            healthy=listener.tracking,
            fault=listener.fault,
        )

    def reset_statistics(self) -> None:
        self._hits = self._steps.hits = self._steps.misses = self._steps.faults = 0
        self._listener.local.evicted = self._listener.announced = 0

    def close(self) -> None:
        """End the thread and close the connections; the cache may be used again. Closing twice is fine."""
        self._listener.close()
