"""The application: the object that a program and its workers share.

Connects to nothing until a verb needs the server, so it may be imported, forked and called in place anywhere.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterable, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast, overload

import msgspec

from headrace import registry
from headrace.admin.alarms import Alarms
from headrace.admin.bulk_operations import BulkOperations
from headrace.admin.event_log import ActLog, EventHooks, EventLog
from headrace.admin.jobs import Jobs
from headrace.admin.queues import Queues
from headrace.admin.workers import Workers
from headrace.context import CurrentJob
from headrace.model import elsewhere
from headrace.model.form import of_call, of_task
from headrace.model.options import CallOptions, TaskKind, TaskOptions
from headrace.model.signature import Unchecked
from headrace.model.type_registry import returned
from headrace.protocol import overviews
from headrace.registry import Decorator, Tasks, WorkflowDecorator, decorated
from headrace.settings import Duration, Settings, chosen_settings, settings_over, warn_of_unknown
from headrace.store.client import Client
from headrace.store.surroundings import aside
from headrace.tasks import bulk, submission
from headrace.tasks.app_context import F, JobLog, kinds_of
from headrace.tasks.bound_task import BoundTask
from headrace.tasks.declared_limits import LimitSet
from headrace.tasks.submission import Propagation, Submission, UnsentJob
from headrace.tasks.task import Task, check_task_name, task_name_of
from headrace.workflows.definition import Registered

if TYPE_CHECKING:
    from headrace.cache import Cache, Cached, CachedOptions
    from headrace.schedules.schedule_handle import CronOptions, EveryOptions, Schedule, Schedules, Target
    from headrace.stats import Stats
    from headrace.store.store import AsyncStore, Store
    from headrace.tasks.job_handle import Job
    from headrace.workflows.collection import Workflows
    from headrace.workflows.definition import Workflow, WorkflowOptions
    from headrace.workflows.run import Completions, H, ReturnWhen, Waited
    from headrace.workflows.scope import Flow

log = logging.getLogger("headrace")

P = ParamSpec("P")
R = TypeVar("R")
G = TypeVar("G", bound=Callable[..., Any])
M = TypeVar("M", bound=Callable[[CurrentJob], submission.Manager])
E = TypeVar("E", bound=Callable[[Submission], submission.Manager])
Hook = Callable[[], object]


class Headrace:
    """A set of tasks and the server that their jobs go through.

    Attributes:
        settings: those that count, of all layers.
        sources: where each setting that is not Headrace's own default came from, such as ``HEADRACE_URL``.
        types: how values are sent that MessagePack has no form for: ``app.types.add(...)``.
        tasks, workflow_definitions: by name.
        registered, context: those again, and what they know of this application.
        jobs, queues, workers, limits: to look at and operate; ``limit(...)`` is ``limits.declare(...)``.
        acts, events, bulk: what people did by hand; what failed or changed; verbs on many jobs.
        middlewares: in the order of registration, the first is outermost.
        hooks, alarms: functions called with events, figures that raise them: ``on(...)``, ``alarm(...)`` declare them.
        preload_hooks: run once in the supervisor, before it forks.
        before_fork_hooks, after_fork_parent_hooks, after_fork_child_hooks: run around each fork, the last in the child.
        job_log: ``app.job_log("INFO")`` sends what jobs log with :mod:`logging` to their own logs, too.
        propagate: ``app.propagate("tenant", variable)`` has a value of the context travel with jobs.
        exit_hooks, closers: run in each runner process before it leaves, within five seconds together.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings | None = None,
        defaults: Mapping[str, Any] | None = None,
        task_defaults: TaskOptions | None = None,
        **overrides: Any,
    ) -> None:
        """Make an application. Nothing connects yet. Raises SettingsError: a setting is unknown or has a value that
        cannot be used. Raises OptionsError: an option of ``task_defaults`` is unknown or out of range.

        Args:
            url: of the server, such as ``redis://host:6379/0``; without one (and without ``HEADRACE_URL``) a
                private server of this project is started at first use.
            settings: take these instead of the environment's and of ``defaults``.
            defaults: settings that count where neither ``overrides`` nor the environment give a value.
            task_defaults: options of tasks that say nothing else: ``{"retries": 3, "queue": "mail"}``.
            overrides: single settings, by field of :class:`headrace.settings.Settings`; None counts as not given.
        """
        warn_of_unknown(os.environ, log.warning)
        given = {**overrides, "url": url}
        self.settings, self.sources = chosen_settings(os.environ, settings, given, defaults)
        self.client = Client(self.settings)
        self.registered = Registered(self.client)
        self.context, self.types = self.registered.context, self.client.types
        self.context.task_defaults = registry.task_defaults(task_defaults)
        self.tasks, self.workflow_definitions = self.registered.tasks, self.registered.definitions
        self.jobs = Jobs(self.client, self.tasks, self.by_name)
        self.queues = Queues(self.client, lambda: self.stats)
        self.workers = Workers(self.client)
        self.limits = LimitSet(self.context, self.tasks)
        self.hooks = EventHooks()
        self.alarms = Alarms(self.client)
        self.limit = self.limits.declare
        self.on = self.hooks.on
        self.alarm = self.alarms.declare
        self.acts = ActLog(self.client)
        self.events = EventLog(self.client)
        self.bulk = BulkOperations(self.client)
        self.middlewares: list[Callable[[CurrentJob], submission.Manager]] = []
        self.preload_hooks, self.after_fork_child_hooks = list[Hook](), list[Hook]()
        self.before_fork_hooks, self.after_fork_parent_hooks = list[Hook](), list[Hook]()
        self.exit_hooks, self.closers = list[Hook](), list[Hook]()
        self.job_log = JobLog()
        self.propagate = Propagation(self.client.enqueue_middlewares, self.middlewares)
        self._stats: Stats | None = None
        if self.settings.traces != "off":
            from headrace.tasks import traces  # at first use: it needs an extra

            traces.install(self.client, self.closers)

    def override(self, **flags: Any) -> None:
        """Put settings above all others, as the command line does with its flags. What is connected connects anew.
        Raises SettingsError: a setting is unknown or has a value that cannot be used.
        """
        settings, _ = settings_over(self.settings, flags)
        if settings != self.settings:
            self.move(settings, {})
        self.sources |= {name: f"--{name.replace('_', '-')}" for name, value in flags.items() if value is not None}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
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

        settings, url = self.settings, self.settings.stats_url
        there = msgspec.structs.replace(settings, url=url, credentials=None, password_file=None)
        client = self.client if url is None else Client(there)
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
        from headrace.cache import Cache  # at first use: it brings the driver

        return cast("Cache", vars(self).setdefault("cache", Cache(self.client)))  # threads may race, as in _open_stats

    @cached_property
    def workflows(self) -> Workflows:
        """All workflows that are stored, of whatever definition. Cost: none."""
        from headrace.workflows.collection import Workflows  # at first use: others must not pay for them

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
        ``options``: see :class:`headrace.model.options.TaskOptions`. Raises OptionsError: an option is unknown, out of
        range, or contradicts another. Raises OptionsError: another task has this name.
        """
        return decorated(partial(registry.define_task, self.registered, options), functions, options)

    @overload
    def cached(self, function: Callable[P, R], /) -> Cached[P, R]: ...
    @overload
    def cached(self, **options: Unpack[CachedOptions]) -> Callable[[Callable[P, R]], Cached[P, R]]: ...
    def cached(self, *functions: Callable[..., Any], **options: Any) -> Any:
        """Cache what a function or coroutine function returns: ``@app.cached`` or ``@app.cached(ttl=600)``.
        ``options``: see :class:`headrace.cache.CachedOptions`. Raises OptionsError: it cannot be named, or is a method.
        """
        from headrace.cache import Cached

        def decorate(function: Callable[..., Any]) -> Cached[..., Any]:
            name, returns = task_name_of(function, None), returned(function, self.types)
            return Cached(self.cache, function, name, returns=returns, **options)

        return decorate(functions[0]) if functions else decorate

    @overload
    def workflow(self, function: Callable[Concatenate[Flow, P], object], /) -> Workflow[P]: ...
    @overload
    def workflow(self, **options: Unpack[WorkflowOptions]) -> WorkflowDecorator: ...
    def workflow(self, *functions: Callable[..., object], **options: Any) -> Any:
        """Make a function the definition of workflows: ``@app.workflow`` or ``@app.workflow(ttl=3600)``.

        The function gets a :class:`headrace.Flow` and what ``create`` was given. It runs once per ``create``, where
        that is called; its name is formed as a task's. ``options``: see
        :class:`headrace.workflows.definition.WorkflowOptions`. Raises OptionsError: an option is unknown or out of
        range, or the function cannot define workflows. Raises OptionsError: another workflow has this name.
        """
        decorate = partial(registry.define_workflow, self.registered, options)
        return decorate(functions[0]) if functions else decorate

    @overload
    def lifespan(self, function: F, /) -> F: ...
    @overload
    def lifespan(self, *, kind: TaskKind | Collection[TaskKind] | None = None) -> Callable[[F], F]: ...
    def lifespan(self, *functions: F, kind: TaskKind | Collection[TaskKind] | None = None) -> F | Callable[[F], F]:
        """Open something in each runner before its first job, and close it after its last: ``@app.lifespan``.

        A function with one yield, ``def`` or ``async def``; decorated with :func:`contextlib.contextmanager` or its
        asynchronous pair it is taken, too. What is before the yield runs in the runner's main thread, for the kind
        async on its event loop; the runner takes jobs when all lifespans have yielded, in the order of registration.
        What is after the yield runs when the runner leaves, the last registered first. They have four seconds for that,
        together; an error there is logged and costs no job. A killed runner leaves nothing.

        What it yields is ``current_job().state``. Where several yield something, each must yield a mapping, and these
        are put together. Where one raises before its yield, the runner says why in the log, takes no job and is
        replaced: after a second, then after twice as long each time, at most 30 seconds. Raises OptionsError: it is not
        such a function, or an asynchronous one for runners without an event loop.

        Args:
            kind: of the runners that have it: process, fork (in the child of each job, so for each job), thread (once,
                for all of its threads), async; or several. Without one: all; a coroutine generator only async ones.
        """

        def decorate(function: F) -> F:
            registry.define_lifespan(self.context, kind, function)
            return function

        kinds_of(kind)
        return decorate(functions[0]) if functions else decorate

    @cached_property
    def schedules(self) -> Schedules:
        """The schedules that are stored, and those that this program declares. Cost: none."""
        from headrace.schedules.schedule_handle import Schedules

        return Schedules(self.client, self.jobs.handle_of)

    def cron(self, expression: str, target: Target, *args: Any, **options: Unpack[CronOptions]) -> Schedule:
        """Run a task or workflow at certain times; see :meth:`headrace.schedules.schedule_handle.Schedules.cron`."""
        return self.schedules.cron(expression, target, *args, **options)

    def every(self, interval: Duration, target: Target, *args: Any, **options: Unpack[EveryOptions]) -> Schedule:
        """Run a task or workflow at even intervals; see :meth:`headrace.schedules.schedule_handle.Schedules.every`."""
        return self.schedules.every(interval, target, *args, **options)

    def include(self, *many: Tasks, move: bool = False) -> None:
        """Have the tasks, workflows and lifespans of these belong to this application, as if they were defined here.

        Included once more they stay as they are. Either all of them are included or, if this raises, none. Cost: none.
        ``move``: take them from another application of this process that has included them, and has them no more.
        Raises OptionsError: one is no :class:`headrace.Tasks`, or belongs to another application. Raises OptionsError:
        two tasks, or two workflows, have one name.
        """
        registry.include(self.registered, many, move=move)

    def worker(self, queues: str = "default", **sizes: int) -> AbstractContextManager[int]:
        """Run a worker of this program: ``with app.worker():``. See :func:`headrace.worker.supervisor.worker`."""
        # By name, as a command line would: a worker stands above its application.
        block: AbstractContextManager[int] = import_module("headrace.worker.supervisor").worker(self, queues, **sizes)
        return block

    def by_name(self, name: str, /, **options: Unpack[CallOptions]) -> BoundTask[..., Any]:
        """A task whose code may be elsewhere: ``app.by_name("tasks.fetch", queue="low").enqueue("https://…")``.

        If it is defined here, its options and checks apply. If it is not, arguments are checked by the worker that runs
        it, which also knows its retries, limits, crash budget and retention; queue, priority and the like are as given
        here. Cost: none. Raises OptionsError: the name or an option cannot be used.
        """
        if name in self.tasks:
            return self.tasks[name].options(**options)
        signature = Unchecked(check_task_name(name), self.types)
        return BoundTask(self.context, signature, of_call(of_task({}), options))

    def job(self, id: str) -> Job[Any]:
        """A handle on the job of this id; its first ``result`` or ``cancel`` takes one trip more. Cost: none."""
        return self.jobs.handle_of(id)

    def enqueue_many(self, jobs: Iterable[UnsentJob[Any]]) -> int:
        """Store many jobs: ``app.enqueue_many(fetch.job(url) for url in urls)``.

        Streams: it takes what the iterable gives in chunks of 1,000 (or a mebibyte), each stored wholly or not at
        all, and keeps none of it. A job with a request id that made one before is not stored, and its ``handle`` is on
        that one. A job whose first attempt failed, or that was packed, is stored only if it is not there yet.

        Returns:
            how many were stored.

        Raises:
            ArgumentError: the iterable gave something else than ``task.job(...)`` makes.
            OptionsError: it gave a job that is stored already.
            StoreUnavailable, StoreFull: as :meth:`Task.enqueue`; chunks before it stay stored, a note of the
                exception tells how many jobs that are.

        Cost: one round trip per chunk.
        """
        return bulk.enqueue_many(self.client, jobs)

    async def aenqueue_many(self, jobs: Iterable[UnsentJob[Any]] | AsyncIterable[UnsentJob[Any]]) -> int:
        """See :meth:`enqueue_many`; takes asynchronous iterables too."""
        return await bulk.aenqueue_many(self.client, jobs)

    def enqueue_packed(self, envelopes: Iterable[bytes]) -> list[bulk.Receipt]:
        """Store jobs that were packed: ``app.enqueue_packed([job.pack()])``; docs/envelope.md has the format.

        A job is stored once, however often and by however many senders: an envelope whose job is stored, or was within
        the setting ``request_id_ttl``, is a duplicate. Every field is checked but the arguments. Nothing is added to
        what an envelope says. Streams in chunks, as :meth:`enqueue_many`. Returns what became of each, in order. Raises
        EnvelopeError: one cannot be stored; ``row`` says which. The others may be given again without it. Raises
        StoreUnavailable, StoreFull: as :meth:`enqueue_many`; all of them may be given again. Cost: one round trip per
        chunk, and one more where an id repeats in it.
        """
        return bulk.enqueue_packed(self.context, envelopes)

    async def aenqueue_packed(self, envelopes: Iterable[bytes] | AsyncIterable[bytes]) -> list[bulk.Receipt]:
        """See :meth:`enqueue_packed`."""
        return await bulk.aenqueue_packed(self.context, envelopes)

    def wait(
        self,
        jobs: Iterable[H],
        timeout: Duration | None = None,
        *,
        return_when: ReturnWhen = "ALL_COMPLETED",
        allow_wait: bool = False,
    ) -> Waited[H]:
        """Wait until jobs and workflow runs have ended: ``done, pending = app.wait(jobs, timeout=30)``.

        Does not poll. One that is not stored any more counts as ended: its ``result()`` raises ``JobNotFound``. Raises
        ArgumentError: something in ``jobs`` is not a handle of this application. Raises WaitRefused, StoreUnavailable,
        ClosedError: as :meth:`Job.result`. Cost: a round trip per 100 jobs, a second one for those that have not ended,
        and one each five seconds.

        Args:
            jobs: handles; one that is given twice counts once.
            timeout: the longest wait, in seconds, which raises nothing; None waits for ever, 0 only looks.
            return_when: as in ``concurrent.futures``; an end in another state than succeeded is an exception.
            allow_wait: wait even inside of a job, or on a running event loop.
        """
        from headrace.workflows.run import wait

        return wait(self.client, jobs, timeout, return_when, allow_wait)

    async def await_(
        self,
        jobs: Iterable[H],
        timeout: Duration | None = None,
        *,
        return_when: ReturnWhen = "ALL_COMPLETED",
        allow_wait: bool = False,
    ) -> Waited[H]:
        """See :meth:`wait`; its pair's name would be the keyword."""
        from headrace.workflows.run import await_

        return await await_(self.client, jobs, timeout, return_when, allow_wait)

    def as_completed(
        self, jobs: Iterable[H], timeout: Duration | None = None, *, allow_wait: bool = False
    ) -> Completions[H]:
        """Give jobs and runs as they end, ``for`` and ``async for``; arguments, errors and cost as for :meth:`wait`.
        Raises WaitTimeout: while iterating: ``timeout`` seconds are over since this call, and some have not ended.
        """
        from headrace.workflows.run import Completions

        return Completions(self.client, jobs, timeout, allow_wait)

    def overview(self) -> overviews.Overview:
        """How much is where: states, queues, workers. Cost: one round trip, whatever the number of jobs."""
        return self.client.run(overviews.overview(self.client.keys))

    async def aoverview(self) -> overviews.Overview:
        """See :meth:`overview`."""
        return await self.client.arun(overviews.overview(self.client.keys))

    def middleware(self, function: M) -> M:
        """Put a context manager around every run of a job.

        ``function`` gets the :class:`CurrentJob` and returns a context manager. It is entered in the runner, just
        before the task's function, and left with its exception, if there is one; the first registered is outermost. A
        context manager that swallows the exception makes the job succeed, with None, and the record keeps what was
        swallowed.

        Around a coroutine function it may be asynchronous; an ordinary one must not block the event loop. One that is
        both is entered in the way that fits. Around an ordinary function one that is only asynchronous fails the job.
        Raises OptionsError: it is not callable, or a bare generator function.
        """
        submission.check(function)
        self.middlewares.append(function)
        return function

    def enqueue_middleware(self, function: E) -> E:
        """Put a context manager around every act of this program that stores work; docs/middleware.md lists the verbs.

        ``function`` gets a :class:`headrace.Submission`, whose jobs may be given other headers and options, and returns
        a context manager: entered before the work is sent, left when the store has answered. The first registered is
        outermost. What it raises before keeps the work from being stored; the store's own error reaches the caller even
        where a context manager swallows it. For asynchronous verbs it may be asynchronous, or both. Raises
        OptionsError: it is not callable, or a bare generator function.
        """
        submission.check(function)
        self.client.enqueue_middlewares.append(function)
        return function

    def on_preload(self, function: G) -> G:
        """Call this once per worker, in the supervisor before it forks, after what the setting ``preload`` names. For
        imports, compilation and tables that all runners share. One that raises, or leaves a thread or a socket behind,
        keeps the worker from starting.
        """
        self.preload_hooks.append(function)
        return function

    def before_fork(self, function: G) -> G:
        """Call this before each fork of a process that runs jobs, the last registered first.

        It runs in the process that forks: the supervisor, or for the fork kind the one of which its children come.
        These and those of :meth:`after_fork_parent` have five seconds a fork: that process does nothing meanwhile.
        One that raises or takes longer is logged, and the fork happens anyway.
        """
        self.before_fork_hooks.append(function)
        return function

    def after_fork_child(self, function: G) -> G:
        """Call this in each new runner process, before its first job: open what must not be shared across a fork. Where
        one raises, the runner ends, says why in the log, and is replaced.
        """
        self.after_fork_child_hooks.append(function)
        return function

    def after_fork_parent(self, function: G) -> G:
        """Call this after each such fork, in the process that forked; see :meth:`before_fork`."""
        self.after_fork_parent_hooks.append(function)
        return function

    def on_exit(self, function: G) -> G:
        """Run this in each runner process before it leaves: flush metrics, traces, logs. A killed runner runs nothing.

        With these, each job of the fork kind costs two forks: the next one need not wait for the hooks of the last.
        All of them together have five seconds, each an even share of what is left; one that takes longer is cut, and
        neither that nor an error in one keeps the others from their turn.
        """
        self.exit_hooks.append(function)
        return function

    def move(self, settings: Settings, stores: dict[str, Any]) -> Callable[[], None]:
        """Use another server, wherever this application was imported, until what is returned is called; for tests.
        ``settings``: the whole of them. ``stores``: that for threads, that for event loops and the listener: ``store``,
        ``astore``, ``ends``.
        """
        self.disconnect()
        before, stats = self.settings, self._stats
        # Those that count through the client of the application follow it; others would go on to their own server.
        follow = before.stats == "direct" and before.stats_url is None
        made = self.client.move(settings, stores)
        self._begin_anew(settings, stats if follow else None)

        def back() -> None:
            self.disconnect()
            self.client.move(before, made)
            self._begin_anew(before, self._stats if follow else stats)

        return back

    def _begin_anew(self, settings: Settings, stats: Stats | None) -> None:
        self.settings, self._stats = settings, stats
        vars(self).pop("_made_stats", None)
        if (cache := vars(self).get("cache")) is not None:
            cache.follow()

    def disconnect(self) -> None:
        """Flush statistics, end the threads and connections of the synchronous verbs. They begin anew when used. The
        private server stays attached: this makes a process fit to fork, and does not leave.
        """
        if self._stats is not None:
            self._stats.close()
            self._stats.client.disconnect()
        if (cache := vars(self).get("cache")) is not None:
            cache.close()
        self.client.disconnect()

    def close(self) -> None:
        """Flush statistics, close the connections of the synchronous verbs, leave the private server; use it again."""
        self.disconnect()
        self.client.close()

    async def aclose(self) -> None:
        """Flush statistics, close all connections, and leave the private server. It may be used again."""
        await aside(self.disconnect)
        if self._stats is not None and self._stats.client is not self.client:
            await self._stats.client.aclose()
        await self.client.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Headrace with {len(self.tasks)} tasks>"
