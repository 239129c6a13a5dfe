"""``@app.cached``: a function whose results are cached values, named by what it was called with.

Owns how a call becomes a name, and how a stored result becomes what the function returns again.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import types
import typing
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Literal, ParamSpec, TypeVar, cast

import msgspec

from headrace.cache.front import ABSENT, Cache
from headrace.codec import encode
from headrace.errors import OptionsError, ResultUndecodable
from headrace.settings import Duration

P = ParamSpec("P")
R = TypeVar("R")

# Names of recent calls that one function remembers; a name is made anew in microseconds.
NAMES = 1024
# Types whose equality tells them apart together with their type: only calls of these are remembered by their arguments.
_SIMPLE = frozenset({str, int, bytes, bool, type(None), float})
_PLAIN = frozenset({Any, None, type(None), bool, int, float, str, bytes, list, dict, inspect.Parameter.empty})


def is_plain(annotation: Any) -> bool:
    """Whether values of this annotation are what MessagePack decodes to, so that one object can serve all callers."""
    origin = typing.get_origin(annotation)
    if origin is None:
        return annotation in _PLAIN
    if origin is Literal:
        return True
    return origin in (list, dict, typing.Union, types.UnionType) and all(map(is_plain, typing.get_args(annotation)))


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
        tags: tuple[str, ...] = (),
    ) -> None:
        """Use ``@app.cached``. ``returns`` is the annotation of what is returned or awaited."""
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self._cache = cache
        self._ttl = ttl
        self._key = key
        self._tags = (name, *tags)
        self._signature = inspect.signature(function)
        self._returns = None if is_plain(returns) else returns
        self._is_async = inspect.iscoroutinefunction(function)
        self._names: dict[Any, str] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The stored result for these arguments, computed and stored if there is none.

        Raises:
            ArgumentError, PayloadTooLarge: an argument cannot be part of a name (give ``key=``), or the result
                cannot be stored.

        Cost: as :meth:`Cache.get`.
        """
        if self._is_async:
            return cast(R, self._acall(args, kwargs))
        name = self.name_of(*args, **kwargs)
        found = self._cache.peek(name)
        if found is ABSENT:
            made = partial(self.function, *args, **kwargs)
            found = self._cache.get(name, make=made, ttl=self._ttl, tags=self._tags)
        return cast(R, self._result(found))

    async def _acall(self, args: Any, kwargs: Any) -> Any:
        name: str = cast(Any, self).name_of(*args, **kwargs)
        found = self._cache.peek(name)
        if found is ABSENT:
            made = partial(cast(Any, self.function), *args, **kwargs)
            found = await self._cache.aget(name, make=made, ttl=self._ttl, tags=self._tags)
        return self._result(found)

    def forget(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Delete the result for these arguments; whether there was one. Cost: one round trip."""
        return self._cache.delete(self.name_of(*args, **kwargs)) > 0

    async def aforget(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """See :meth:`forget`."""
        return await self._cache.adelete(self.name_of(*args, **kwargs)) > 0

    def clear(self) -> int:
        """Delete the results for all arguments; how many there were. Cost: one round trip per 1,000."""
        return self._cache.delete_tag(self.name)

    async def aclear(self) -> int:
        """See :meth:`clear`."""
        return await self._cache.adelete_tag(self.name)

    def name_of(self, *args: P.args, **kwargs: P.kwargs) -> str:
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
        # MessagePack, since repr and hash of equal arguments may differ from process to process.
        data = encode([bound.args, sorted(bound.kwargs.items())], 1 << 20, f"arguments of {self.name}")
        return f"{self.name}:{hashlib.blake2b(data, digest_size=16).hexdigest()}"

    def _result(self, found: Any) -> Any:
        if self._returns is None:
            return found
        try:
            return msgspec.convert(found, self._returns)
        except (msgspec.ValidationError, TypeError) as error:
            raise ResultUndecodable(
                f"the cached result of {self.name} does not fit its annotation ({error}): after a change of the "
                f"annotation, delete the old results with .clear()"
            ) from None

    def __repr__(self) -> str:
        return f"<Cached {self.name}>"
