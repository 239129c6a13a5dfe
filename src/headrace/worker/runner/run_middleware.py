"""The function of a task inside of the application's middleware. User code runs here, and only here.

An exception that a middleware swallows is kept in the job, for its record: the job succeeds without what it raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from types import TracebackType
from typing import Any

from headrace.context import CurrentJob
from headrace.running_job import running
from headrace.tasks.middleware import Middleware, aenter, ordinary

# Stands for the value of a function whose exception a middleware has swallowed.
SWALLOWED = object()


def called(
    middlewares: Sequence[Middleware], job: CurrentJob, function: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """The value of an ordinary function; :data:`SWALLOWED` where it has none."""
    result, innermost = SWALLOWED, _Innermost()
    with ExitStack() as stack:
        stack.enter_context(running(job))
        for middleware in middlewares:
            stack.push(innermost)
            stack.enter_context(ordinary(middleware(job), job.task, "is an ordinary function: make it `async def`"))
        stack.push(innermost)
        result = function(*args, **kwargs)
    job.swallowed = innermost.error
    return result


async def acalled(
    middlewares: Sequence[Middleware], job: CurrentJob, function: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """The same for a coroutine function."""
    result, innermost = SWALLOWED, _Innermost()
    async with AsyncExitStack() as stack:
        stack.enter_context(running(job))
        for middleware in middlewares:
            stack.push(innermost)
            await aenter(stack, middleware(job))
        stack.push(innermost)
        result = await function(*args, **kwargs)
    job.swallowed = innermost.error
    return result


class _Innermost:
    """Stands between middlewares, and remembers the innermost exception that passed; swallows none.

    Attributes:
        error: that exception.
    """

    error: BaseException | None = None

    def __call__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        self.error = self.error or error
