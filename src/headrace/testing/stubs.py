"""Stand-ins for the code of tasks: what a drained job runs instead of its function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Self

from headrace.tasks.task import Task


class Stub:
    """What a task does for the rest of a test, or of a ``with`` block, instead of running its code.

    Everything else stays as it is: arguments are checked and converted before, the result and the retries after.

    Attributes:
        calls: the arguments of each call so far: a tuple and a dict.
    """

    def __init__(
        self,
        task: Task[..., Any, Any],
        returns: Any,
        raises: BaseException | type[BaseException] | None,
        runs: Callable[..., Any] | None,
        times: int,
    ) -> None:
        """Use ``kit.stub(task, ...)``."""
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._task = task
        self._returns = returns
        self._raises = raises
        self._runs = runs
        self._times = times
        self._real: Callable[..., Any] = task.function
        task.function = self._acall if task.is_async else self._call

    def remove(self) -> None:
        """Have the task run its own code again. Removing twice is fine."""
        if self._task.function in (self._call, self._acall):
            self._task.function = self._real

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _call(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._answer(args, kwargs) if self._stands_in(args, kwargs) else self._real(*args, **kwargs)

    async def _acall(self, *args: Any, **kwargs: Any) -> Any:
        if not self._stands_in(args, kwargs):
            return await self._real(*args, **kwargs)
        answer = self._answer(args, kwargs)
        return await answer if inspect.isawaitable(answer) else answer

    def _stands_in(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Note a call; whether it is still ours to answer."""
        if self._times and len(self.calls) >= self._times:
            return False
        self.calls.append((args, kwargs))
        return True

    def _answer(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._raises is not None:
            raise self._raises
        if self._runs is not None:
            return self._runs(*args, **kwargs)
        return self._returns

    def __repr__(self) -> str:
        return f"<Stub of {self._task.name}, called {len(self.calls)} times>"
