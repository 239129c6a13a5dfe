"""What is registered in an application, or in a set of tasks until one includes it: its tasks and its definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.tasks.app_context import AppContext

if TYPE_CHECKING:
    from headrace.store.client import Client
    from headrace.tasks.task import Task
    from headrace.workflows.definition import Workflow


class Registered:
    """Tasks and definitions by name.

    Attributes:
        tasks, definitions: those of the whole application, or before there is one, those that share this.
        context: what the tasks know of the application.
    """

    __slots__ = ("context", "definitions", "tasks")

    def __init__(self, client: Client | None = None) -> None:
        """Make one. Without a client it has no application yet: :meth:`join` gives it one."""
        self.tasks: dict[str, Task[..., Any, Any]] = {}
        self.definitions: dict[str, Workflow[...]] = {}
        self.context = AppContext(self.tasks, client)

    def join(self, app: Registered) -> None:
        """Become that of an application: what is registered from now on is registered there."""
        self.context.join(app.context)
        self.tasks, self.definitions = app.tasks, app.definitions
