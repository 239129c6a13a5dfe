"""The application as its tasks know it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from headrace.errors import OptionsError
from headrace.model.options import KINDS, Kind, TaskKind
from headrace.model.type_registry import Types
from headrace.tasks.submission import Manager

if TYPE_CHECKING:
    from headrace.store.client import Client
    from headrace.tasks.limit import Limit

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
    kinds: frozenset[TaskKind]


def lifespan_of(function: Any, kind: TaskKind | Collection[TaskKind] | None) -> Lifespan:
    """The lifespan that a function is. Raises OptionsError: no generator function without arguments, a wrong kind."""
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


def kinds_of(kind: Any) -> frozenset[TaskKind]:
    """The kinds that were named; none for None. Raises OptionsError: one is unknown, or the collection is empty."""
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
    return [one for one in lifespans if kind in one.kinds]


class RegisteredTask(Protocol):
    @property
    def function(self) -> Callable[..., Any]: ...
    @property
    def limits(self) -> tuple[str, ...]: ...
    @property
    def hidden_places(self) -> str: ...


class AppContext:
    """An application as its tasks see it.

    Attributes:
        tasks, limits, lifespans: of the whole application, or before there is one, of those that share this.
        types: how values are sent that MessagePack has no form for.
        task_defaults: options of tasks that say nothing else.
    """

    __slots__ = ("_client", "lifespans", "limits", "task_defaults", "tasks", "types")

    def __init__(self, tasks: Mapping[str, RegisteredTask], client: Client | None = None) -> None:
        """Make one. Without a client it has no application yet: :meth:`join` gives it one."""
        self._client = client
        self.types = Types() if client is None else client.types
        self.tasks = tasks
        self.lifespans: list[Lifespan] = []
        self.limits: dict[str, Limit] = {}
        self.task_defaults: Mapping[str, Any] = {}

    @property
    def client(self) -> Client:
        """The application's way to its server. Raises OptionsError: there is no application yet."""
        client = self._client
        if client is None:
            raise self._lost()
        return client

    def limits_of(self, names: Iterable[str], queue: str) -> list[Limit]:
        own = [self.limits[name] for name in names if name in self.limits]
        return own + [one for one in self.limits.values() if one.rule.queue == queue]

    @property
    def included(self) -> bool:
        return self._client is not None

    def require(self) -> None:
        if self._client is None:
            raise self._lost()

    def join(self, app: AppContext) -> None:
        """Become that of an application: what is registered from now on is registered there."""
        self.types.join(app.types)
        self._client, self.tasks = app.client, app.tasks
        self.lifespans, self.limits, self.task_defaults = app.lifespans, app.limits, app.task_defaults

    def _lost(self) -> OptionsError:
        names = list(self.tasks)
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        module = next((task.function.__module__ for task in self.tasks.values()), "a module")
        return OptionsError(
            f"the Tasks of {module} ({names[0] if names else 'no task'}{more}) are in no application: call "
            f"app.include(...) with them where the application is made, and import that module in this program too"
        )


class JobLog:
    """``app.job_log``; runners do what it was told.

    Attributes:
        level: of the least important records that are sent; None: none is.
    """

    def __init__(self) -> None:
        self.level: int | None = None

    def __call__(self, level: int | str = logging.INFO) -> None:
        """Send what jobs log with :mod:`logging` to the logs of these jobs, too: ``job.logs()`` has it.

        Applies in runners, to records of any logger but Headrace's that are made while a job runs, in its thread or
        coroutine, and that their own logger lets through. Values under the names of ``redact`` are hidden. ``level``:
        of the least important records that are sent, such as ``logging.WARNING`` or ``"WARNING"``. Raises OptionsError:
        there is no such level.
        """
        found = level if isinstance(level, int) else logging.getLevelNamesMapping().get(level.upper())
        if found is None:
            raise OptionsError(f"{level!r} is not a level of logging: give DEBUG, INFO, WARNING, ERROR or CRITICAL")
        self.level = found
