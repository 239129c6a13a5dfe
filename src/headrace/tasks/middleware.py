"""Middleware: how context managers of the application are entered, from ordinary code and from coroutines.

An ordinary context manager works everywhere. An asynchronous one works around coroutines; one that is both is entered
in the way that fits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from typing import Any, TypeAlias

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


def enter(stack: ExitStack, manager: Any, where: str) -> None:
    """Enter the context manager of a middleware in ordinary code.

    Args:
        where: what it is around, and what would be right, for the error.

    Raises:
        OptionsError: it is asynchronous, or no context manager.
    """
    if not _has(manager, "__enter__"):
        if not _has(manager, "__aenter__"):
            raise _no_manager(manager)
        raise OptionsError(
            f"a middleware gave an asynchronous context manager, and {where}, or give it __enter__ and __exit__, too"
        )
    stack.enter_context(manager)


async def aenter(stack: AsyncExitStack, manager: Any) -> None:
    """Enter the context manager of a middleware in a coroutine; the asynchronous way comes first.

    Raises:
        OptionsError: it is no context manager.
    """
    if _has(manager, "__aenter__"):
        await stack.enter_async_context(manager)
    elif _has(manager, "__enter__"):
        stack.enter_context(manager)
    else:
        raise _no_manager(manager)


def _has(manager: object, name: str) -> bool:
    return hasattr(type(manager), name)


def _no_manager(found: object) -> OptionsError:
    return OptionsError(f"a middleware must return a context manager, not {found!r:.80}")
