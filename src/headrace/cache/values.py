"""The verbs of the cache as steps: their checks, the order of the requests to the server, the counters of reads.

A value is frozen once, when it arrives, since all callers share one object; a hit costs nothing for it. One driver of
these steps is for threads, one for event loops, over the same listener.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple, NoReturn, TypeVar, cast

import msgspec

from headrace.cache.listener import FIRST, Listener, PendingRead
from headrace.cache.local_store import CacheReader, Fill, FillLeases, OneTimeSignal
from headrace.errors import ArgumentError, FrozenValue, HeadraceError, OptionsError, StoreFull, StoreUnavailable
from headrace.model.codec import as_read, decode, encode
from headrace.model.ids import check_name
from headrace.model.type_changes import change_of
from headrace.model.type_registry import Types
from headrace.protocol import cache_calls as protocol
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call
from headrace.running_job import on_event_loop
from headrace.settings import Duration, Settings, seconds
from headrace.store.client import Client, adriven, driven

T = TypeVar("T")
Steps = Generator[Any, Any, T]


class Read(msgspec.Struct, frozen=True):
    """A step: read over the link and wait for the reply."""

    name: str


class Start:
    """A step: start the listener, and wait shortly for its first try to connect."""


class Make(msgspec.Struct, frozen=True):
    function: Callable[[], Any]


class Join(msgspec.Struct, frozen=True):
    """A step: get the fill of a name, and whether this reader leads it."""

    name: str
    tags: Sequence[str]
    reader: CacheReader


class Wait(msgspec.Struct, frozen=True):
    signal: OneTimeSignal
    seconds: float


class Driver:
    """Carries out steps, blocking (``run``) or in an event loop (``arun``)."""

    def __init__(self, client: Client, listener: Listener, fills: FillLeases) -> None:
        self._client = client
        self._listener = listener
        self._fills = fills

    def run(self, steps: Steps[T]) -> T:
        return driven(steps, self._do)

    def _do(self, step: Any) -> Any:
        if _is_call(step):
            return self._client.run(step)
        if isinstance(step, Make):
            return _plain(step.function)
        if isinstance(step, Join):
            return self._fills.join(step.name, step.tags, step.reader, may_wait=not on_event_loop())
        on_end = threading.Lock()
        on_end.acquire()
        if isinstance(step, Wait):
            return step.signal.subscribe(on_end.release) and on_end.acquire(timeout=step.seconds)
        if isinstance(step, Start):
            return self._listener.start(on_end.release) and on_end.acquire(timeout=FIRST)
        pending = self._listener.send_read(step.name, on_end.release)
        if pending is not None and not on_end.acquire(timeout=self._client.settings.timeout):
            self._listener.on_overdue(pending)
        return pending

    async def arun(self, steps: Steps[T]) -> T:
        return await adriven(steps, self._ado)

    async def _ado(self, step: Any) -> Any:
        if _is_call(step):
            return await self._client.arun(step)
        if isinstance(step, Make):
            made = step.function()
            return await made if inspect.isawaitable(made) else made
        if isinstance(step, Join):
            return self._fills.join(step.name, step.tags, step.reader, may_wait=True)
        loop = asyncio.get_running_loop()
        on_end: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            # The loop may have ended before the reply came.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_wake, on_end)

        if isinstance(step, Wait):
            if step.signal.subscribe(wake):
                await asyncio.wait((on_end,), timeout=step.seconds)
            return None
        if isinstance(step, Start):
            if self._listener.start(wake):
                await asyncio.wait((on_end,), timeout=FIRST)
            return None
        pending = self._listener.send_read(step.name, wake)
        if pending is not None:
            try:
                await asyncio.wait((on_end,), timeout=self._client.settings.timeout)
            except BaseException:
                self._listener.end(pending)
                raise
            if not on_end.done():
                self._listener.on_overdue(pending)
        return pending


def _is_call(step: object) -> bool:
    return isinstance(step, Call)


def _plain(make: Callable[[], Any]) -> Any:
    """The value of ``make``, which must not be awaitable here. Raises OptionsError."""
    made = make()
    if inspect.isawaitable(made):
        if inspect.iscoroutine(made):
            made.close()
        raise OptionsError("make returned an awaitable, which get cannot await: use await cache.aget(...) instead")
    return made


def _wake(on_end: asyncio.Future[None]) -> None:
    if not on_end.done():
        on_end.set_result(None)


MAX_NAME = 512
MAX_TAGS = 8


class Absent:
    def __repr__(self) -> str:
        return "<absent>"


class FillOptions(NamedTuple):
    """How to compute an absent value: function, seconds to keep, tags, seconds to wait for other processes."""

    make: Callable[[], Any]
    ttl: float
    tags: list[str]
    wait: float


def checked(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise OptionsError(f"a cached value's name is a text that is not empty, not {name!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise OptionsError(f"the name {name!r} is not valid Unicode: give another") from None
    if size > MAX_NAME:
        raise OptionsError(
            f"a cached value's name has at most {MAX_NAME} bytes, {name[:40]!r}… has {size}: hash its long part"
        )
    return name


def check_tags(tags: Sequence[str]) -> list[str]:
    if isinstance(tags, str) or len(tags) > MAX_TAGS:
        raise OptionsError(f"tags is a list of at most {MAX_TAGS} names, not {tags!r}")
    return [check_name("tag", tag) for tag in dict.fromkeys(tags)]


# Bytes of a number, or of a text beside its characters.
SCALAR = 56
_CONTAINERS = (dict, list)


def _refuse(self: object, *_args: object, **_kwargs: object) -> NoReturn:
    kind = "dict" if isinstance(self, dict) else "list"
    raise FrozenValue(
        f"cached values are shared and read-only: change a copy ({kind}(value), or copy.deepcopy(value) for nested "
        f"values) and store it with cache.set"
    )


class FrozenDict(dict[Any, Any]):
    """A dict that refuses to be changed. ``dict(value)`` and ``copy.deepcopy(value)`` make plain ones."""

    __slots__ = ()
    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __copy__(self) -> dict[Any, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return {key: copy.deepcopy(value, memo) for key, value in self.items()}

    def __reduce__(self) -> Any:
        return dict, (list(self.items()),)


class FrozenList(list[Any]):
    """A list that refuses to be changed. ``list(value)`` and ``copy.deepcopy(value)`` make plain ones."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(value, memo) for value in self]

    def __reduce__(self) -> Any:
        return list, (list(self[:]),)


def freeze(value: Any) -> tuple[Any, int]:
    """Make a decoded value read-only, in place; return it with the estimated bytes of its containers, without texts."""
    size = SCALAR
    kind = type(cast(object, value))
    if kind is dict:
        plain: dict[Any, Any] = value
        for name, inner in plain.items():
            if type(inner) in _CONTAINERS:
                plain[name], more = freeze(inner)
                size += more
        value = FrozenDict(plain)
        return value, size + 2 * SCALAR * len(plain) + sys.getsizeof(value)
    if kind is list:
        row: list[Any] = value
        for place, inner in enumerate(row):
            if type(inner) in _CONTAINERS:
                row[place], more = freeze(inner)
                size += more
        value = FrozenList(row)
        return value, size + SCALAR * len(row) + sys.getsizeof(value)
    return value, size


log = logging.getLogger("headrace.cache")

# Seconds between two reads of a value that another process computes, while the server announces no changes.
UNTRACKED_POLL = 0.25

# The result of a read without a value: None is a value like any other.
ABSENT: Final[Any] = Absent()


class Values:
    """The steps of each verb.

    Attributes:
        hits: reads that found locally that there is no value.
        misses: reads that asked the server.
        faults: reads that the server did not answer, or whose value cannot be decoded.
    """

    def __init__(self, settings: Settings, keys: Keys, types: Types, listener: Listener, fills: FillLeases) -> None:
        self._settings = settings
        self._keys = keys
        self._types = types
        self._listener = listener
        self._fills = fills
        self.hits = self.misses = self.faults = 0

    def find(
        self,
        name: str,
        default: Any,
        make: Any,
        ttl: Duration | None,
        tags: Sequence[str],
        wait: Duration | None,
    ) -> Steps[Any]:
        checked(name)
        if name in self._listener.local.absent:
            self.hits += 1
            self._listener.local.visit(name)
            found = ABSENT
        else:
            self.misses += 1
            found = yield from self._read(name)
        if found is not ABSENT:
            return found
        if make is None:
            return default
        if not callable(make):
            if inspect.iscoroutine(make):
                make.close()
            raise OptionsError(f"make is a function without arguments, not {make!r}: leave out the () behind its name")
        patience = 0.0 if wait is None else seconds(wait, "wait")
        options = FillOptions(make, self._ttl(ttl), check_tags(tags), patience)
        return (yield from self._fill(name, options))

    def _read(self, name: str) -> Steps[Any]:
        pending: PendingRead | None = yield Read(name)
        if pending is None and not self._listener.tracking:
            yield Start()
            pending = yield Read(name)
        if pending is not None:
            try:
                if not pending.failed:
                    return self._keep(pending)
            finally:
                self._listener.end(pending)
        stored = yield from self._attempt(protocol.read(self._keys, name))
        return ABSENT if stored is None else self._decoded(name, stored)[0]

    def _keep(self, pending: PendingRead) -> Any:
        stored, left = pending.replies
        now = pending.sent
        end = now + self._settings.cache_max_age
        if not isinstance(stored, bytes):
            if self._settings.cache_absent:
                self._listener.keep_absent(pending, end)
            return ABSENT
        value, size = self._decoded(pending.name, stored)
        # -2: the value ended between the two commands; -1: another program stored it without an end.
        if value is not ABSENT and left != -2:
            self._listener.keep(pending, value, size, end if left < 0 else min(end, now + left / 1000))
        return value

    def _decoded(self, name: str, stored: bytes) -> tuple[Any, int]:
        try:
            value, size = freeze(decode(protocol.payload(stored)))
            return value, size + len(stored)
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            self.faults += 1
            log.warning("the cached value of %r cannot be read and counts as absent: %s", name, error)
            return ABSENT, 0

    def _attempt(self, call: Call[T]) -> Steps[T | None]:
        if self._listener.unreachable:
            self.faults += 1
            return None
        try:
            return cast(T, (yield call))
        except (StoreUnavailable, StoreFull):
            self.faults += 1
            return None

    def _fill(self, name: str, options: FillOptions) -> Steps[Any]:
        reader = self._fills.reader()
        while True:
            fill, leads = yield Join(name, options.tags, reader)
            if leads:
                with self._fills.leading(fill):
                    return (yield from self._compute(fill, options))
            try:
                yield Wait(fill.ended, protocol.LEASE)
            finally:
                self._fills.leave(reader)
            if not fill.ended.fired:
                self._fills.retire(fill)
            elif fill.error is not None:
                raise fill.error
            elif fill.serves(reader):
                return fill.value

    def _compute(self, fill: Fill, options: FillOptions) -> Steps[Any]:
        name = fill.name
        turn = yield from self._attempt(protocol.lease(self._keys, name, options.tags, options.wait))
        found, turn = yield from self._wait_for_others(name, turn, options)
        if found is not ABSENT:
            fill.value, fill.made = found, True
            return found
        try:
            data = self._packed(name, (yield Make(options.make)))
        except GeneratorExit:
            raise  # a closed generator cannot await
        except BaseException:
            if turn is not None and turn.first:
                with contextlib.suppress(HeadraceError):
                    yield from self._attempt(protocol.release(self._keys, name, turn.lease))
            raise
        fill.value = yield from self._offer(fill, turn, data, options)
        fill.made = True
        return fill.value

    def _wait_for_others(
        self, name: str, turn: protocol.Turn | None, options: FillOptions
    ) -> Steps[tuple[Any, protocol.Turn | None]]:
        while turn is not None and (turn.left or not turn.lease):
            # Expect before the read, so that no change between them is missed.
            news = self._listener.watchers.expect(name)
            try:
                found = yield from self._read(name)
                if found is not ABSENT:
                    return found, None
                again = yield from self._attempt(protocol.lease(self._keys, name, options.tags, options.wait))
                if again is not None and again.left:
                    yield Wait(news, again.left if self._listener.tracking else min(again.left, UNTRACKED_POLL))
                elif again is not None and not again.lease and not turn.lease:
                    # The stored value cannot be decoded. Delete it, so that a new one can be stored.
                    yield from self._attempt(protocol.delete(self._keys, [name]))
                turn = again
            finally:
                self._listener.watchers.unexpect(name, news)
        return ABSENT, turn

    def _offer(self, fill: Fill, turn: protocol.Turn | None, data: bytes, options: FillOptions) -> Steps[Any]:
        name = fill.name
        if turn is not None:
            call = protocol.store(self._keys, name, data, options.ttl, options.tags, turn.lease)
            stored = yield from self._attempt(call)
            self._listener.forget([name])
            if stored is None and turn.first:
                yield from self._attempt(protocol.release(self._keys, name, turn.lease))
            if stored is not None:
                found = yield from self._read(name)
                if found is not ABSENT:
                    return found
                fill.doubtful = not stored
        return freeze(decode(data))[0]

    def _packed(self, name: str, value: Any) -> bytes:
        """The MessagePack of a value. Raises ArgumentError, PayloadTooLarge: it does not decode to an equal value."""
        what = f"the value of {name!r}"
        data = encode(value, self._settings.max_result, what, self._types.encoder)
        if (found := change_of(what, value, as_read(data, what))) is not None:
            raise ArgumentError(
                f"{what}{found.place}: {type(found.sent).__name__} would come back as "
                f"{type(found.back).__name__}; store plain values (None, numbers, texts, bytes, lists, dicts), or "
                f"return it from an @app.cached function with a return annotation, {found.annotation}"
            )
        return data

    def store(self, name: str, value: Any, ttl: Duration | None, tags: Sequence[str]) -> Steps[None]:
        checked(name)
        data = self._packed(name, value)
        try:
            yield protocol.store(self._keys, name, data, self._ttl(ttl), check_tags(tags))
        finally:
            self._forget([name])

    def delete(self, names: Sequence[str]) -> Steps[int]:
        count = 0
        for first in range(0, len(names), protocol.CHUNK):
            chunk = [checked(name) for name in names[first : first + protocol.CHUNK]]
            try:
                count += yield protocol.delete(self._keys, chunk)
            finally:
                self._forget(chunk)
        return count

    def _forget(self, names: Sequence[str]) -> None:
        self._fills.retire_names(names)
        self._listener.forget(names)

    def drop(self, tag: str) -> Steps[int]:
        try:
            dropped: protocol.Dropped = yield protocol.drop(self._keys, tag, True)
        finally:
            self._fills.retire_tag(None if tag == protocol.ALL else tag)
        # Bounded by the count at the start: new values that come faster must not keep this loop going for ever.
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
