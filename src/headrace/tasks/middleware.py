"""Middleware: how context managers of the application are entered, from ordinary code and from coroutines.

An ordinary context manager works everywhere. An asynchronous one works around coroutines; one that is both is entered
in the way that fits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from typing import Any, TypeAlias, cast

from headrace.errors import OptionsError

Manager: TypeAlias = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]
Middleware: TypeAlias = Callable[..., Manager]


def check(function: Any) -> None:
    """Refuse what is no middleware.

    Raises:
        OptionsError: it is not callable, or a bare generator or coroutine function.
    """
    bare = (inspect.isgeneratorfunction, inspect.isasyncgenfunction, inspect.iscoroutinefunction)
    if callable(function) and not any(is_bare(function) for is_bare in bare):
        return
    raise OptionsError(
        f"middleware must be a callable that returns a context manager, not {function!r}: decorate a generator "
        f"function with contextlib.contextmanager, an asynchronous one with contextlib.asynccontextmanager"
    )


def ordinary(manager: object, inside: str = "", advice: str = "") -> AbstractContextManager[Any]:
    """The context manager of a middleware, for ordinary code.

    Args:
        inside: what it is around, if that cannot await it, and ``advice``: what would be right; for the error.

    Raises:
        OptionsError: it is asynchronous, or no context manager.
    """
    if hasattr(type(manager), "__enter__"):
        return cast("AbstractContextManager[Any]", manager)
    if not is_asynchronous(manager):
        raise OptionsError(f"a middleware must return a context manager, not {manager!r:.80}")
    raise OptionsError(
        f"a middleware gave an asynchronous context manager, and {inside} {advice}, or give it __enter__ and "
        f"__exit__, too"
    )


async def aenter(stack: AsyncExitStack, manager: Any) -> None:
    """Enter the context manager of a middleware in a coroutine; the asynchronous way comes first.

    Raises:
        OptionsError: it is no context manager.
    """
    if is_asynchronous(manager):
        await stack.enter_async_context(manager)
    else:
        stack.enter_context(ordinary(manager))


def is_asynchronous(manager: object) -> bool:
    """Whether a coroutine awaits it."""
    return hasattr(type(manager), "__aenter__")
