"""The application: the object that a program and its workers share.

Owns the registry of tasks, middleware and hooks. Connects to nothing until a verb needs the server, so it may be
imported, forked and called in place anywhere.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterable, Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, overload

import msgspec

from headrace import bulk, elsewhere, naming
from headrace.annotations import hints, reason_unchecked
from headrace.client import Client
from headrace.context import CurrentJob, running
from headrace.errors import DuplicateTask, OptionsError
from headrace.jobs import Jobs
from headrace.options import KINDS, CallOptions, Kind, TaskOptions, flag, of_call, of_task
from headrace.protocol import admin
from headrace.protocol.admin import Overview
from headrace.queues import Queues
from headrace.settings import Duration, Settings, load
from headrace.signature import Unchecked
from headrace.task import Bound, Draft, Task
from headrace.workers import Workers

if TYPE_CHECKING:
    from typing import Concatenate

    from headrace.cache import Cache, Cached
    from headrace.definition import Workflow, WorkflowOptions
    from headrace.flow import Flow
    from headrace.stats import Stats
    from headrace.store import AsyncStore, Store
    from headrace.workflows import Workflows

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


class WorkflowDecorator(Protocol):
    """What ``@app.workflow(...)`` returns."""

    def __call__(self, function: Callable[Concatenate[Flow, P], object], /) -> Workflow[P]: ...


class Headrace:
    """A set of tasks and the server that their jobs go through.

    Attributes:
        settings: from the environment (``HEADRACE_...``), overridden by what the constructor was given.
        tasks: by name.
        workflow_definitions: by name.
        jobs, queues, workers: for looking at and operating on what is stored, and on who works.
        middlewares: in the order of registration, the first is outermost.
        preload_hooks: run once in the supervisor, before it forks.
        before_fork_hooks, after_fork_parent_hooks: run around each fork, in the process that forks.
        after_fork_child_hooks: run in each new runner process.
        exit_hooks: run in each runner process before it leaves, within five seconds together; ``closers``, which are
            the library's own, come after them.
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
        self.workflow_definitions: dict[str, Workflow[...]] = {}
        self.jobs = Jobs(self.client, self.tasks)
        self.queues = Queues(self.client)
        self.workers = Workers(self.client)
        self.middlewares: list[Middleware] = []
        self.preload_hooks: list[Hook] = []
        self.before_fork_hooks: list[Hook] = []
        self.after_fork_child_hooks: list[Hook] = []
        self.after_fork_parent_hooks: list[Hook] = []
        self.exit_hooks: list[Hook] = []
        self.closers: list[Hook] = []
        self._stats: Stats | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say what the verb of another queue is called here."""
            raise AttributeError(elsewhere.of_app(name), name=name, obj=self)

    @property
    def store(self) -> Store:
        """The store for threads; made at first use."""
        return self.client.store

    @property
    def stats(self) -> Stats:
        """Counters and histograms over time; made at first use."""
        return self._stats or self._open_stats()

    def _open_stats(self) -> Stats:
        from headrace.stats import Stats

        settings = self.settings
        if settings.stats_url is None:
            client = self.client
        else:
            client = Client(msgspec.structs.replace(settings, url=settings.stats_url))
        # setdefault is atomic: threads that race for the first use agree on one.
        made: Stats = vars(self).setdefault("_made_stats", Stats(client, settings))
        if self._stats is None:
            self._stats = made
            # A runner leaves without its interpreter's own end.
            self.closers.append(made.close)
        return made

    @property
    def astore(self) -> AsyncStore:
        """The store for an event loop; made at first use."""
        return self.client.astore

    @cached_property
    def cache(self) -> Cache:
        """Values that are read often and changed rarely, kept in the process. Cost: none."""
        # Loaded at first use: it brings the driver.
        from headrace.cache import Cache

        return Cache(self.client)

    @cached_property
    def workflows(self) -> Workflows:
        """All workflows that are stored, of whatever definition. Cost: none."""
        # Loaded at first use: a program without workflows must not pay for them.
        from headrace.workflows import Workflows

        return Workflows(self.client, tasks=self.tasks)

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
        checked.pop("loose", None)
        of_task(checked)

        def decorate(function: Callable[..., Any]) -> Any:
            return self._define(function, options)

        return decorate

    @overload
    def cached(self, function: Callable[P, R], /) -> Cached[P, R]: ...
    @overload
    def cached(
        self,
        *,
        ttl: Duration | None = None,
        key: Callable[..., str] | None = None,
        tags: Sequence[str] = (),
        wait: Duration | None = None,
    ) -> Callable[[Callable[P, R]], Cached[P, R]]: ...
    def cached(
        self,
        *functions: Callable[..., Any],
        ttl: Duration | None = None,
        key: Callable[..., str] | None = None,
        tags: Sequence[str] = (),
        wait: Duration | None = None,
    ) -> Any:
        """Cache what a function or coroutine function returns: ``@app.cached`` or ``@app.cached(ttl=600)``.

        Args:
            ttl: how long a result stays; without one, the setting ``cache_ttl``.
            key: called with the arguments, returns a text that names the result; without it, all arguments do.
            tags: further tags of each result, at most 7.
            wait: seconds that another process which computes a result is waited for; see :meth:`Cache.get`.

        Raises:
            OptionsError: it cannot be named, or is a method.
        """
        from headrace.cache import Cached

        def decorate(function: Callable[..., Any]) -> Cached[..., Any]:
            returns = hints(function).get("return", inspect.Parameter.empty)
            if returns is not inspect.Parameter.empty and reason_unchecked(returns):
                returns = inspect.Parameter.empty
            name = naming.name_of(function, None)
            return Cached(self.cache, function, name, returns=returns, ttl=ttl, key=key, tags=tuple(tags), wait=wait)

        return decorate(functions[0]) if functions else decorate

    @overload
    def workflow(self, function: Callable[Concatenate[Flow, P], object], /) -> Workflow[P]: ...
    @overload
    def workflow(self, **options: Unpack[WorkflowOptions]) -> WorkflowDecorator: ...
    def workflow(self, *functions: Callable[..., object], **options: Any) -> Any:
        """Make a function the definition of workflows: ``@app.workflow`` or ``@app.workflow(ttl=3600)``.

        The function gets a :class:`headrace.Flow` and what ``create`` was given. It runs once per ``create``, where
        that is called; its name is formed as a task's.

        Args:
            options: see :class:`headrace.definition.WorkflowOptions`.

        Raises:
            OptionsError: an option is unknown or out of range, or the function cannot define workflows.
            DuplicateTask: another workflow has this name.
        """

        def decorate(function: Callable[..., object]) -> Any:
            # Loaded at first use: a program without workflows must not pay for them.
            from headrace.definition import Workflow, check_function
            from headrace.scope import Site

            check_function(function)
            given = dict(options)
            name = naming.name_of(function, given.pop("name", None))
            if name in self.workflow_definitions:
                raise DuplicateTask(
                    f"there is a workflow {name} already "
                    f"({naming.place(self.workflow_definitions[name].definition.function)}): give the one at "
                    f"{naming.place(function)} another name with @app.workflow(name=...)"
                )
            made: Workflow[...] = Workflow(
                Site(self.client, self.tasks, self.workflow_definitions), name, function, given
            )
            self.workflow_definitions[name] = made
            nested = made.definition.task
            self.tasks[nested.name] = nested
            return made

        return decorate(functions[0]) if functions else decorate

    def by_name(self, name: str, **options: Unpack[CallOptions]) -> Bound[..., Any]:
        """A task whose code may be elsewhere: ``app.by_name("tasks.fetch", queue="low").enqueue("https://…")``.

        If it is defined here, its options and checks apply. If it is not, arguments are checked by the worker that
        runs it, which also knows its retries, limits, crash budget and retention; queue, priority and the like are as
        given here.

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
        """Call this once per worker, in the supervisor before it forks, after what the setting ``preload`` names.

        For imports, compilation and tables that all runners share. One that raises, or leaves a thread or a socket
        behind, keeps the worker from starting.
        """
        self.preload_hooks.append(function)
        return function

    def before_fork(self, function: F) -> F:
        """Call this before each fork of a process that runs jobs, the last registered first.

        It runs in the process that forks: the supervisor, or for the fork kind the one of which its children come.
        These and those of :meth:`after_fork_parent` have five seconds a fork: that process does nothing meanwhile.
        One that raises or takes longer is logged, and the fork happens all the same.
        """
        self.before_fork_hooks.append(function)
        return function

    def after_fork_child(self, function: F) -> F:
        """Call this in each new runner process, before its first job: open what must not be shared across a fork.

        Where one raises, the runner ends, says why in the log, and is replaced.
        """
        self.after_fork_child_hooks.append(function)
        return function

    def after_fork_parent(self, function: F) -> F:
        """Call this after each such fork, in the process that forked; see :meth:`before_fork`."""
        self.after_fork_parent_hooks.append(function)
        return function

    def on_exit(self, function: F) -> F:
        """Run this in each runner process before it leaves: flush metrics, traces, logs. A killed runner runs nothing.

        With these, each job of the fork kind costs two forks: the next one need not wait for the hooks of the last.
        All of them together have five seconds, each an even share of what is left; one that takes longer is cut, and
        neither that nor an error in one keeps the others from their turn.
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

    def disconnect(self) -> None:
        """Flush statistics, end the threads and connections of the synchronous verbs. They begin anew when used.

        The private server stays attached: this makes a process fit to fork, and does not leave.
        """
        if self._stats is not None:
            self._stats.close()
            # Statistics may have a server, and so a connection, of their own.
            if isinstance(way := self._stats.way, Client):
                way.disconnect()
        self._close_cache()
        self.client.disconnect()

    def close(self) -> None:
        """Flush statistics, close the connections of the synchronous verbs, leave the private server; use it again."""
        self.disconnect()
        self.client.close()

    async def aclose(self) -> None:
        """Flush statistics, close all connections, and leave the private server. It may be used again."""
        if self._stats is not None:
            await asyncio.to_thread(self._stats.close)
        await asyncio.to_thread(self._close_cache)
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

    def _close_cache(self) -> None:
        cache: Cache | None = self.__dict__.get("cache")
        if cache is not None:
            cache.close()

    def _define(self, function: Callable[..., Any], options: dict[str, Any]) -> Task[..., Any, Any]:
        given = dict(options)
        own = given.pop("name", None)
        name = naming.name_of(function, own)
        if own is None or inspect.isbuiltin(function):
            naming.check_found(function)
        try:
            kind = _kind(function, given.pop("kind", None))
            loose = flag("loose", given.pop("loose", None) or False)
            task: Task[..., Any, Any] = Task(self.client, name, function, kind, of_task(given), loose=loose)
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
