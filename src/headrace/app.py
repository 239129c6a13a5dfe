"""The application: the object that a program and its workers share.

Owns the registry of tasks, middleware and hooks. Connects to nothing until a verb needs the server, so it may be
imported, forked and called in place anywhere.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterable, Callable, Coroutine, Generator, Iterable
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, overload

import msgspec

from headrace import bulk, naming
from headrace.client import Client
from headrace.context import CurrentJob, running
from headrace.errors import DuplicateTask, OptionsError
from headrace.jobs import Jobs
from headrace.options import KINDS, CallOptions, Kind, TaskOptions, of_call, of_task
from headrace.protocol import admin
from headrace.protocol.admin import Overview
from headrace.queues import Queues
from headrace.settings import Settings, load
from headrace.signature import Unchecked
from headrace.task import Bound, Draft, Task

if TYPE_CHECKING:
    from headrace.store import AsyncStore, Store

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

Middleware = Callable[[CurrentJob], AbstractContextManager[Any]]
Hook = Callable[[], object]


class Decorator(Protocol):
    """What ``@app.task(...)`` returns."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...


class Headrace:
    """A set of tasks and the server that their jobs go through.

    Attributes:
        settings: from the environment (``HEADRACE_...``), overridden by what the constructor was given.
        tasks: by name.
        jobs, queues: for looking at and operating on what is stored.
        middlewares: in the order of registration, the first is outermost.
        preload_hooks: run once in the supervisor, before it forks.
        after_fork_hooks: run in each new runner process.
        exit_hooks: run in each runner process before it leaves, within five seconds together.
    """

    def __init__(self, url: str | None = None, *, settings: Settings | None = None, **overrides: Any) -> None:
        """Make an application. Nothing connects yet.

        Args:
            url: of the server, such as ``redis://host:6379/0``; without one (and without ``HEADRACE_URL``) a private
                server of this directory is started at first use.
            settings: take these instead of the environment's.
            overrides: single settings, by field of :class:`headrace.settings.Settings`.

        Raises:
            SettingsError: a setting is unknown or has a value that cannot be used.
        """
        if settings is None:
            settings = load(os.environ, url=url, **overrides)
        elif url is not None or overrides:
            settings = load({}, **{**msgspec.structs.asdict(settings), **overrides, **({"url": url} if url else {})})
        self.settings = settings
        self.client = Client(settings)
        self.tasks: dict[str, Task[..., Any, Any]] = {}
        self.jobs = Jobs(self.client, self.tasks)
        self.queues = Queues(self.client)
        self.middlewares: list[Middleware] = []
        self.preload_hooks: list[Hook] = []
        self.after_fork_hooks: list[Hook] = []
        self.exit_hooks: list[Hook] = []

    @property
    def store(self) -> Store:
        """The store for threads; made at first use."""
        return self.client.store

    @property
    def astore(self) -> AsyncStore:
        """The store for an event loop; made at first use."""
        return self.client.astore

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(self, **options: Unpack[TaskOptions]) -> Decorator: ...
    def task(self, *functions: Callable[..., Any], **options: Any) -> Any:
        """Make a function or coroutine function a task: ``@app.task`` or ``@app.task(retries=3)``.

        The task's name is ``module.function``, the same in the script that defines it and in a worker that imports it.

        Args:
            options: see :class:`headrace.options.TaskOptions`.

        Raises:
            OptionsError: an option is unknown, out of range, or contradicts another.
            DuplicateTask: another task has this name.
        """
        if functions:
            (function,) = functions
            return self._define(function, options)
        checked = dict(options)
        _kind(None, checked.pop("kind", None))
        checked.pop("name", None)
        of_task(checked)

        def decorate(function: Callable[..., Any]) -> Any:
            return self._define(function, options)

        return decorate

    def by_name(self, name: str, **options: Unpack[CallOptions]) -> Bound[..., Any]:
        """A task whose code may be elsewhere: ``app.by_name("tasks.fetch", queue="low").enqueue("https://…")``.

        If it is defined here, its options and checks apply. If it is not, arguments are checked by the worker that
        runs it, which also knows its retries, limits and retention; queue, priority and the like are as given here.

        Raises:
            OptionsError: the name or an option cannot be used.

        Cost: none.
        """
        if name in self.tasks:
            return self.tasks[name].options(**options)
        signature = Unchecked(naming.check(name))
        return Bound(self.client, signature, of_call(of_task({}), options))

    def enqueue_many(self, jobs: Iterable[Draft[Any]]) -> int:
        """Store many jobs: ``app.enqueue_many(fetch.job(url) for url in urls)``.

        Streams: it takes what the iterable gives in chunks of 1,000 (or a mebibyte), each stored wholly or not at
        all, and keeps none of it. Whoever keeps the drafts finds each one's ``id`` and ``handle`` set afterwards.

        Returns:
            how many were stored.

        Raises:
            ArgumentError: the iterable gave something else than ``task.job(...)`` makes.
            StoreUnavailable, StoreFull: as :meth:`Task.enqueue`; chunks before it stay stored, a note of the
                exception tells how many jobs that are.

        Cost: one round trip per chunk.
        """
        return bulk.enqueue_many(self.client, jobs)

    async def aenqueue_many(self, jobs: Iterable[Draft[Any]] | AsyncIterable[Draft[Any]]) -> int:
        """See :meth:`enqueue_many`; takes asynchronous iterables too."""
        return await bulk.aenqueue_many(self.client, jobs)

    def overview(self) -> Overview:
        """How much is where: states, queues, workers. Cost: one round trip, whatever the number of jobs."""
        return self.client.run(admin.overview(self.client.keys))

    async def aoverview(self) -> Overview:
        """See :meth:`overview`."""
        return await self.client.arun(admin.overview(self.client.keys))

    def middleware(self, function: Middleware) -> Middleware:
        """Put a context manager around every run of a job.

        ``function`` gets the :class:`CurrentJob` and returns a context manager. It is entered in the runner, just
        before the task's function, and left with its exception, if there is one; the first registered is outermost. A
        context manager that swallows the exception makes the job succeed, with None. Around a coroutine it is
        entered in its task on the event loop, so it must not block.

        Raises:
            OptionsError: it is not callable, or a bare generator function.
        """
        if not callable(function) or inspect.isgeneratorfunction(function):
            raise OptionsError(
                f"middleware must be a callable that returns a context manager, not {function!r}: decorate a generator "
                f"function with contextlib.contextmanager"
            )
        self.middlewares.append(function)
        return function

    def on_preload(self, function: F) -> F:
        """Call this once per worker, in the supervisor before it forks.

        For imports, compilation and caches that all runners share; it must start no thread.
        """
        self.preload_hooks.append(function)
        return function

    def after_fork(self, function: F) -> F:
        """Call this in each new runner process, before its first job: open what must not be shared across a fork."""
        self.after_fork_hooks.append(function)
        return function

    def on_exit(self, function: F) -> F:
        """Run this in each runner process before it leaves: flush metrics, traces, logs. A killed runner runs nothing.

        All of them together have five seconds; an error in one is logged and keeps the others from nothing.
        """
        self.exit_hooks.append(function)
        return function

    def around(self, job: CurrentJob) -> AbstractContextManager[Any]:
        """What a runner puts around ``task.function(...)``: the current job, and all middleware inside of it."""
        return self._around(job) if self.middlewares else running(job)

    @contextmanager
    def _around(self, job: CurrentJob) -> Generator[CurrentJob, None, None]:
        with ExitStack() as stack:
            stack.enter_context(running(job))
            for middleware in self.middlewares:
                stack.enter_context(middleware(job))
            yield job

    def close(self) -> None:
        """Close the connections of the synchronous verbs, and leave the private server. It may be used again."""
        self.client.close()

    async def aclose(self) -> None:
        """Close all connections, and leave the private server. It may be used again."""
        await self.client.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _define(self, function: Callable[..., Any], options: dict[str, Any]) -> Task[..., Any, Any]:
        given = dict(options)
        name = naming.name_of(function, given.pop("name", None))
        try:
            kind = _kind(function, given.pop("kind", None))
            task: Task[..., Any, Any] = Task(self.client, name, function, kind, of_task(given))
        except OptionsError as error:
            raise OptionsError(f"task {name}: {error}") from None
        if name in self.tasks:
            raise DuplicateTask(
                f"there is a task {name} already ({naming.place(self.tasks[name].function)}): give the one at "
                f"{naming.place(function)} another name with @app.task(name=...)"
            )
        self.tasks[name] = task
        return task

    def __repr__(self) -> str:
        return f"<Headrace with {len(self.tasks)} tasks>"


def _kind(function: Callable[..., Any] | None, kind: Any) -> Kind:
    """Who runs a function: coroutines need an event loop, and nothing else runs on it."""
    if kind is not None and kind not in KINDS:
        raise OptionsError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    if function is None:
        return cast(Kind, kind)
    if not inspect.iscoroutinefunction(function):
        if kind == "async":
            raise OptionsError("kind='async' runs coroutines: write `async def`, or take process, fork or thread")
        return cast(Kind, kind or "process")
    if kind not in (None, "async"):
        raise OptionsError(
            f"a coroutine function runs on an event loop, so kind={kind!r} cannot be: leave kind out, or write `def`"
        )
    return "async"
