"""``app.cache``: values that are read often and changed rarely, kept in the process until the server says otherwise."""

from __future__ import annotations

import functools
import hashlib
import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, cast

import msgspec

from headrace.cache.listener import Listener
from headrace.cache.local_store import Bounds, Eviction, FillLeases, Statistics
from headrace.cache.values import ABSENT, Driver, Values
from headrace.errors import ArgumentError, OptionsError, ResultMismatch
from headrace.model.codec import as_read, encode, is_sendable
from headrace.model.ids import check_name
from headrace.model.type_changes import change_of, narrowed, result_misfit
from headrace.model.type_registry import has_records, hints, orders, reason_unchecked, sorted_form
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
            lambda: located(client.url(), settings), client.keys, bounds, timeout=settings.timeout,
            silence=settings.cache_heartbeat_timeout,
        )  # fmt: skip
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

        After a database transaction, delete when it is committed: a reader who computes from the state before it cannot
        store that any more. Raises OptionsError: a name cannot be used. Raises StoreUnavailable: no answer: the values
        may still be there. Cost: one round trip per 1,000 names.
        """
        return self._driver.run(self._steps.delete(names))

    async def adelete(self, *names: str) -> int:
        """See :meth:`delete`."""
        return await self._driver.arun(self._steps.delete(names))

    def delete_tag(self, tag: str) -> int:
        """Delete all values of a tag; how many. Running fills are not stored. Cost: one round trip per 1,000."""
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
        """Counters of this process since it started, was forked, or :meth:`reset_statistics`. Hits are counted without
        a lock: beside busy threads a few may be missed. Cost: none.
        """
        listener, local = self._listener, self._listener.local
        hits, misses = self._hits + self._steps.hits, self._steps.misses
        reads = hits + misses
        return Statistics(
            hits=hits, misses=misses, hit_ratio=round(hits / reads, 2) if reads else None, used=len(local),
            capacity=local.bounds.entries, utilization=round(len(local) / local.bounds.entries, 2), bytes=local.bytes,
            capacity_bytes=local.bounds.bytes, evicted=local.evicted, announced=listener.announced,
            epochs=listener.epochs, faults=self._steps.faults, healthy=listener.tracking, fault=listener.fault,
        )  # fmt: skip

    def reset_statistics(self) -> None:
        self._hits = self._steps.hits = self._steps.misses = self._steps.faults = 0
        self._listener.local.evicted = self._listener.announced = 0

    def close(self) -> None:
        """End the thread and close the connections; the cache may be used again. Closing twice is fine."""
        self._listener.close()


P = ParamSpec("P")
R = TypeVar("R")

# Names of recent calls that one function remembers; a name is made anew in microseconds.
NAMES = 1024
# Bytes; the cache has a cap of its own.
MOST = 1 << 40
# Types whose equality tells them apart together with their type: only calls of these are remembered by their arguments.
_SIMPLE = frozenset({str, int, bytes, bool, type(None), float})
_PLAIN = frozenset({Any, None, type(None), bool, int, float, str, bytes, list, dict, inspect.Parameter.empty})


class CachedOptions(TypedDict, total=False):
    """What ``@app.cached(...)`` takes.

    Attributes:
        ttl: how long a result stays; without one, the setting ``cache_ttl``.
        key: called with the arguments, returns a text that names the result; without it, all arguments do.
        tags: further tags of each result, at most 7.
        wait: seconds that another process which computes a result is waited for; see :meth:`Cache.get`.
    """

    ttl: Duration | None
    key: Callable[..., str] | None
    tags: Sequence[str]
    wait: Duration | None


def is_plain(annotation: Any) -> bool:
    """Whether values of this annotation are what MessagePack decodes to, so that one object can serve all callers."""
    origin = typing.get_origin(annotation)
    if origin is None:
        return annotation in _PLAIN
    if origin is Literal:
        return True
    return origin in (list, dict, typing.Union, types.UnionType) and all(map(is_plain, typing.get_args(annotation)))


def _types(value: object) -> list[Any]:
    kind = type(value)
    inside: list[Any] = []
    if issubclass(kind, dict):
        entries = cast("dict[Any, Any]", value)
        inside = [*entries, *entries.values()]
    elif issubclass(kind, (list, tuple)):
        inside = [*cast("list[Any]", value)]
    return [f"{kind.__module__}.{kind.__qualname__}", *map(_types, inside)]


def _refuse_method(function: Any, name: str) -> None:
    """Raise OptionsError for a method: its results would be named by the object, which no other process has."""
    place: str = getattr(function, "__qualname__", "").rpartition(".")[0]
    first = next(iter(inspect.signature(function).parameters), "")
    if place and not place.endswith("<locals>") and first in ("self", "cls"):
        raise OptionsError(
            f"{name} is a method, and its results cannot be named by {first}: cache a function of what they depend on, "
            f"such as an id, and call it from the method"
        )


class Cached(Generic[P, R]):
    """A function, or coroutine function, that is computed once and read from the cache afterwards.

    A call by position and the same call by keyword are one entry. Plain results (numbers, texts, bytes, lists, dicts)
    are shared and cannot be changed in place; results of other annotated types are built anew at each call.

    Attributes:
        function: the function itself: ``cached.function(...)`` computes, whatever is stored.
        name: first part of its entries' names, and the tag that all of them have.
    """

    def __init__(
        self, cache: Cache, function: Callable[P, R], name: str, *, returns: Any = inspect.Parameter.empty,
        ttl: Duration | None = None, key: Callable[..., str] | None = None, tags: Sequence[str] = (),
        wait: Duration | None = None,
    ) -> None:  # fmt: skip
        """Use ``@app.cached``. ``returns`` is the annotation of what is returned or awaited."""
        _refuse_method(function, name)
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self._cache = cache
        self._ttl = ttl
        self._wait = wait
        self._key = key
        self._tags = (name, *tags)
        self._signature = inspect.signature(function)
        self._returns = None if is_plain(returns) else returns
        self._checked = Any if returns is inspect.Parameter.empty else returns
        self._is_async = inspect.iscoroutinefunction(function)
        self._names: dict[Any, str] = {}

    def __reduce__(self) -> str:
        return self.function.__qualname__

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The stored result for these arguments, computed and stored if there is none.

        Raises ArgumentError: an argument cannot be part of a name (give ``key=``), or the result cannot be stored or
        would come back as another type (annotate it). Raises ResultMismatch: the result does not fit the annotation.
        Raises PayloadTooLarge: the result is too large. Cost: as :meth:`Cache.get`.
        """
        if self._is_async:
            return cast(R, self._acall(args, kwargs))
        name = self.name_of(*args, **kwargs)
        found = self._cache.peek(name)
        if found is ABSENT:
            made = partial(self._compute, args, kwargs)
            found = self._cache.get(name, None, made, self._ttl, self._tags, self._wait)
        return cast(R, self._result(found))

    async def _acall(self, args: Any, kwargs: Any) -> Any:
        name: str = cast(Any, self).name_of(*args, **kwargs)
        found = self._cache.peek(name)
        if found is ABSENT:
            made = partial(self._acompute, args, kwargs)
            found = await self._cache.aget(name, None, made, self._ttl, self._tags, self._wait)
        return self._result(found)

    def _compute(self, args: Any, kwargs: Any) -> Any:
        return self._plain(cast(Any, self.function)(*args, **kwargs))

    async def _acompute(self, args: Any, kwargs: Any) -> Any:
        return self._plain(await cast(Any, self.function)(*args, **kwargs))

    def _plain(self, made: Any) -> Any:
        """A result as it is stored, if it comes back as it is. Raises ArgumentError, ResultMismatch: it does not."""
        what = f"the result of {self.name}"
        plain = as_read(encode(made, MOST, what, self._cache.types.encoder), what)
        try:
            back = msgspec.convert(plain, self._checked, dec_hook=self._cache.types.decode)
        except (msgspec.ValidationError, TypeError) as error:
            raise ResultMismatch(
                f"what {self.name} returned does not fit its return annotation: {result_misfit(error, self._checked)}"
            ) from None
        found = change_of(what, made, back)
        if found is None and has_records(self._checked, self._cache.types):
            found = narrowed(made, back)
        if found is not None:
            reason = reason_unchecked(hints(self.function).get("return", Any), self._cache.types)
            advice = f"annotate what it returns, -> {found.annotation or type(found.sent).__name__}"
            raise ArgumentError(
                f"the result of {self.name}{found.place}: {type(found.sent).__name__} would come back as "
                f"{type(found.back).__name__}; {f'its annotation does not help: {reason}' if reason else advice}"
            )
        return plain

    def forget(self, /, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Delete the result for these arguments; whether there was one. Cost: one round trip."""
        return self._cache.delete(self.name_of(*args, **kwargs)) > 0

    async def aforget(self, /, *args: P.args, **kwargs: P.kwargs) -> bool:
        """See :meth:`forget`."""
        return await self._cache.adelete(self.name_of(*args, **kwargs)) > 0

    def clear(self) -> int:
        """Delete the results for all arguments; how many there were. Cost: one round trip per 1,000."""
        return self._cache.delete_tag(self.name)

    async def aclear(self) -> int:
        """See :meth:`clear`."""
        return await self._cache.adelete_tag(self.name)

    def name_of(self, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """The name under which the result for these arguments is cached. Raises TypeError: the function does not take
        them. Raises ArgumentError: one cannot be part of a name. Raises OptionsError: ``key`` returned no text. Cost:
        none.
        """
        if kwargs or not all(type(arg) in _SIMPLE for arg in args):
            return self._make_name(args, kwargs)
        # By type too: 1, 1.0 and True are equal, and a function may well tell them apart.
        recent = (args, *map(type, args))
        name = self._names.get(recent)
        if name is None:
            name = self._make_name(args, kwargs)
            if len(self._names) >= NAMES:
                self._names.clear()
            # What is remembered cannot tell 0.0 and -0.0 apart: they are equal, and of one type.
            if not any(type(arg) is float and not arg for arg in args):
                self._names[recent] = name
        return name

    def _make_name(self, args: Any, kwargs: Any) -> str:
        if self._key is not None:
            part: Any = self._key(*args, **kwargs)
            if not isinstance(part, str):
                raise OptionsError(f"key of {self.name} must return a text, not {type(part).__name__}")
            return f"{self.name}:{part}"
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for parameter, default in self._unnamed.items():
            if bound.arguments[parameter] is default:
                del bound.arguments[parameter]
        # MessagePack, since repr and hash of equal arguments may differ from process to process.
        given = [list(bound.args), dict(sorted(bound.kwargs.items()))]
        what = f"arguments of {self.name}"
        plain = as_read(encode(given, 1 << 20, what, self._cache.types.encoder), what)
        # Sets have another order in each process. That of a dictionary is part of the call.
        data = sorted_form(given, self._cache.types)
        if found := orders(plain):
            data += repr(found).encode()
        if change_of(what, given, plain) is not None:
            # A tuple and a list, or a decimal and its text, are other calls, and one MessagePack.
            data += repr(_types(given)).encode()
        return f"{self.name}:{hashlib.blake2b(data, digest_size=16).hexdigest()}"

    @functools.cached_property
    def _unnamed(self) -> dict[str, Any]:
        given = {one.name: one.default for one in self._signature.parameters.values() if one.default is not one.empty}
        return {name: one for name, one in given.items() if not is_sendable(one, self._cache.types.encoder)}

    def _result(self, found: Any) -> Any:
        if self._returns is None:
            return found
        try:
            return msgspec.convert(found, self._returns, dec_hook=self._cache.types.decode)
        except (msgspec.ValidationError, TypeError) as error:
            fault = result_misfit(error, self._returns)
            raise ResultMismatch(
                f"the cached result of {self.name} does not fit its annotation ({fault}): after a change of the "
                f"annotation, delete the old results with .clear()"
            ) from None

    def __repr__(self) -> str:
        return f"<Cached {self.name}>"
