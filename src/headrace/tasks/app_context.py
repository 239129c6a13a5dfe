"""What tasks know of the application that they belong to.

Every task holds the context of its application, or that of its :class:`headrace.Tasks`, which learns its application
late, by ``app.include``. Owns no connection: the client makes those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import TasksNotIncluded
from headrace.model.type_registry import Types

if TYPE_CHECKING:
    from headrace.store.client import Client
    from headrace.tasks.lifespan import Lifespan
    from headrace.tasks.limit import Limit


class RegisteredTask(Protocol):
    """A task, as far as other tasks know it."""

    @property
    def function(self) -> Callable[..., Any]: ...
    @property
    def limits(self) -> tuple[str, ...]: ...


class AppContext:
    """An application as its tasks see it.

    Attributes:
        tasks, limits, lifespans: by name, or in the order of registration; those of the whole
            application, or before there is one, those that share this.
        types: how values are sent that MessagePack has no form for.
    """

    __slots__ = ("_client", "lifespans", "limits", "tasks", "types")

    def __init__(self, tasks: Mapping[str, RegisteredTask], client: Client | None = None) -> None:
        """Make one. Without a client it has no application yet: :meth:`join` gives it one."""
        self._client = client
        self.types = Types() if client is None else client.types
        self.tasks = tasks
        self.lifespans: list[Lifespan] = []
        self.limits: dict[str, Limit] = {}

    @property
    def client(self) -> Client:
        """The application's way to its server.

        Raises:
            TasksNotIncluded: there is no application yet.
        """
        client = self._client
        if client is None:
            raise self._lost()
        return client

    def limits_of(self, names: Iterable[str], queue: str) -> list[Limit]:
        """Those of jobs whose task has the limits of these names, in this queue, as far as they are declared."""
        own = [self.limits[name] for name in names if name in self.limits]
        return own + [one for one in self.limits.values() if one.rule.queue == queue]

    @property
    def included(self) -> bool:
        """Whether there is an application."""
        return self._client is not None

    def require(self) -> None:
        """Raise :class:`TasksNotIncluded` if there is no application."""
        if self._client is None:
            raise self._lost()

    def join(self, app: AppContext) -> None:
        """Become that of an application: what is registered from now on is registered there."""
        self.types.join(app.types)
        self._client, self.tasks = app.client, app.tasks
        self.lifespans, self.limits = app.lifespans, app.limits

    def _lost(self) -> TasksNotIncluded:
        names = list(self.tasks)
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        module = next((task.function.__module__ for task in self.tasks.values()), "a module")
        return TasksNotIncluded(
            f"the Tasks of {module} ({names[0] if names else 'no task'}{more}) are in no application: call "
            f"app.include(...) with them where the application is made, and import that module in this program too"
        )
