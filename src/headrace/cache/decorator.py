"""``@app.cached``: a function whose results are cached values, named by what it was called with.

Owns how a call becomes a name, and how a stored result becomes what the function returns again.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, cast

import msgspec

from headrace.cache.app_cache import Cache
from headrace.cache.values import ABSENT
from headrace.errors import ArgumentError, OptionsError, ResultMismatch, ResultUndecodable
from headrace.model.codec import as_read, encode, is_sendable
from headrace.model.type_changes import change_of, described, narrowed
from headrace.model.type_registry import has_records, hints, orders, reason_unchecked, sorted_form
from headrace.settings import Duration

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
        self,
        cache: Cache,
        function: Callable[P, R],
        name: str,
        *,
        returns: Any = inspect.Parameter.empty,
        ttl: Duration | None = None,
        key: Callable[..., str] | None = None,
        tags: Sequence[str] = (),
        wait: Duration | None = None,
    ) -> None:
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

        Raises:
            ArgumentError: an argument cannot be part of a name (give ``key=``), or the result cannot be stored or
                would come back as another type (annotate it).
            ResultMismatch: the result does not fit the annotation.
            PayloadTooLarge: the result is too large.

        Cost: as :meth:`Cache.get`.
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
        """A result as it is stored, if it comes back as it is. Raises ArgumentError: it would come back as another
        type. Raises ResultMismatch: it does not fit the annotation.
        """
        what = f"the result of {self.name}"
        plain = as_read(encode(made, MOST, what, self._cache.types.encoder), what)
        try:
            back = msgspec.convert(plain, self._checked, dec_hook=self._cache.types.decode)
        except (msgspec.ValidationError, TypeError) as error:
            raise ResultMismatch(
                f"what {self.name} returned does not fit its return annotation: {described(error, self._checked)}"
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
        """The name under which the result for these arguments is cached. Cost: none.

        Raises:
            TypeError: the function does not take these arguments.
            ArgumentError: an argument cannot be part of a name.
            OptionsError: ``key`` returned something else than a text.
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
            fault = described(error, self._returns)
            raise ResultUndecodable(
                f"the cached result of {self.name} does not fit its annotation ({fault}): after a change of the "
                f"annotation, delete the old results with .clear()"
            ) from None

    def __repr__(self) -> str:
        return f"<Cached {self.name}>"
