"""A lifespan: what a runner opens before its first job and closes after its last. Here as it is written down.

Pure: checks the function and says in which kinds of runners it belongs. Entering and leaving are the worker's.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import msgspec

from headrace.errors import OptionsError
from headrace.model.options import KINDS, Kind
from headrace.tasks.submission import Manager

LifespanFunction = Callable[[], Iterator[Any] | AsyncIterator[Any] | Manager]
F = TypeVar("F", bound=LifespanFunction)


class Lifespan(msgspec.Struct, frozen=True):
    """One lifespan of an application.

    Attributes:
        name: ``module.function``, for people.
        open: makes the context manager.
        is_async: whether that is an asynchronous one, which needs an event loop.
        kinds: of runners that enter it.
    """

    name: str
    open: Callable[[], Manager]
    is_async: bool
    kinds: frozenset[Kind]


def lifespan_of(function: Any, kind: Kind | Collection[Kind] | None) -> Lifespan:
    """The lifespan that a function is; see :meth:`headrace.Headrace.lifespan`.

    Raises:
        OptionsError: it is no generator function without arguments, or a kind is unknown or cannot have it.
    """
    kinds = kinds_of(kind)
    inner = inspect.unwrap(function) if callable(function) else function
    is_async = inspect.isasyncgenfunction(inner)
    if not (is_async or inspect.isgeneratorfunction(inner)):
        raise OptionsError(
            f"a lifespan is a function with one yield, `def` or `async def`, not {function!r:.80}: what is before the "
            f"yield runs before a runner's first job, what is after it when the runner leaves"
        )
    name = f"{inner.__module__}.{inner.__qualname__}"
    needed = [one.name for one in inspect.signature(inner).parameters.values() if one.default is one.empty]
    if needed:
        raise OptionsError(f"the lifespan {name} is called without arguments, and it takes {', '.join(needed)}")
    if is_async and kinds - {"async"}:
        others = ", ".join(one for one in KINDS if one in kinds and one != "async")
        raise OptionsError(
            f"the lifespan {name} is asynchronous, and runners of the kind {others} have no event loop: write `def`, "
            f"or leave kind out, which means async"
        )
    opens: Any = function
    if inspect.isasyncgenfunction(function):
        opens = asynccontextmanager(function)
    elif inspect.isgeneratorfunction(function):
        opens = contextmanager(function)
    return Lifespan(name, opens, is_async, kinds or frozenset({"async"} if is_async else KINDS))


def kinds_of(kind: Any) -> frozenset[Kind]:
    """The kinds that were named; none where None was given.

    Raises:
        OptionsError: one is unknown, or the collection is empty.
    """
    if kind is None:
        return frozenset()
    named: list[Any] = [kind]
    if isinstance(kind, Collection) and not isinstance(kind, str):
        named = [*kind]
    wrong = [one for one in named if one not in KINDS]
    if wrong or not named:
        raise OptionsError(f"kind must be one of {', '.join(KINDS)}, or several of them, not {kind!r}")
    return frozenset(named)


def of_kind(lifespans: Iterable[Lifespan], kind: Kind) -> list[Lifespan]:
    """Those that runners of a kind enter."""
    return [one for one in lifespans if kind in one.kinds]
