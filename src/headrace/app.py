"""The application: the object that a program and its workers share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from headrace.context import CurrentJob
from headrace.task import Task

Middleware = Callable[[CurrentJob], AbstractContextManager[Any]]
Hook = Callable[[], object]


class Headrace:
    """SKELETON - names are final.

    Attributes:
        settings: Settings.
        tasks: name -> Task.
        middlewares, preload_hooks, after_fork_hooks: in the order of registration.
        client: Client; ``store`` and ``astore`` are its stores.
    """

    tasks: dict[str, Task[..., Any, Any]]
    middlewares: list[Middleware]
    preload_hooks: list[Hook]
    after_fork_hooks: list[Hook]

    def around(self, job: CurrentJob) -> AbstractContextManager[Any]:
        """``running(job)`` inside of all middleware: what a runner puts around ``task.function(...)``."""
        raise NotImplementedError
