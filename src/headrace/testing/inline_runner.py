"""Runs claimed jobs in the caller's thread or event loop, through the runner's own path."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from headrace.app import Headrace
from headrace.context import CurrentJob
from headrace.errors import HeadraceError, LifespanError, OptionsError, SoftTimeLimit
from headrace.model import codec
from headrace.model.ended import Ended, Released
from headrace.model.job import Claim, Input
from headrace.model.options import OWN
from headrace.protocol.consume import Note
from headrace.running_job import running
from headrace.tasks.app_context import of_kind
from headrace.tasks.bound_task import new_id
from headrace.tasks.task import RunPlan
from headrace.worker.own_tasks import worker_tasks
from headrace.worker.runner.async_kind import Drive
from headrace.worker.runner.execute import aperform, perform
from headrace.worker.runner.interrupts import MainGate
from headrace.worker.runner.lifespans import Lifespans
from headrace.worker.runner.runner_context import RunnerContext, runner_context
from headrace.worker.runner.thread_kind import ThreadGate

R = TypeVar("R")
Moment = Literal["start", "end"]


class RunnerKilled(BaseException):
    """Ends the code of a start where its process would die: at its hard limit, or at a crash that a test asked for."""


class Crash(msgspec.Struct, frozen=True):
    """The death of a process that runs a job.

    Attributes:
        task: name of the task that it meets; empty: any.
        at: before the code began, or after it returned and before its result was told.
        worker: the whole worker dies, and nothing tells the store.
    """

    task: str
    at: Moment
    worker: bool


class Faults:
    """What is armed, each for one occasion.

    Attributes:
        failures: errors of the next calls of the application, which the server never sees.
        crashes: of the next starts that they meet.
        replies: errors of the next calls, which the server has answered.
    """

    def __init__(self) -> None:
        self.failures: deque[Exception] = deque()
        self.replies: deque[Exception] = deque()
        self.crashes: list[Crash] = []

    def take_crash(self, claim: Claim) -> Crash | None:
        for one in self.crashes:
            if one.task in ("", claim.task):
                self.crashes.remove(one)
                return one
        return None

    def unmet(self) -> list[str]:
        """What was armed and has met nothing: a test that counts on it has shown nothing."""
        crashes = [f"a crash of {one.task or 'any task'}" for one in self.crashes]
        failures = [f"a failure of the store ({type(one).__name__})" for one in self.failures]
        return [*crashes, *failures, *("a lost reply" for _ in self.replies)]


class LimitGate:
    """The gate of one start (see :class:`headrace.worker.runner.interrupts.Gate`) that also keeps its limits.

    In the main thread a signal interrupts the code wherever it is, calls that wait included. In any other thread the
    soft limit is raised at the next step of Python code, and the hard one only counts.

    Attributes:
        late: the start has run past its hard limit.
    """

    def __init__(self, plan: RunPlan | None) -> None:
        self.late = False
        self._plan = plan
        self._job: CurrentJob | None = None
        self._main = threading.current_thread() is threading.main_thread()
        self._thread_gate = ThreadGate({})
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None
        self._before: Any = None
        self._soft = False

    def open(self, job: CurrentJob) -> None:
        self._job = job
        if self._plan is None or not (self._plan.timeout or self._plan.hard_timeout):
            return
        if self._main:
            self._before = signal.signal(signal.SIGUSR1, self._interrupt)
        else:
            self._thread_gate.attach()
            self._thread_gate.open(job)
        args = (self._plan.timeout, self._plan.hard_timeout, job.number)
        self._watcher = threading.Thread(target=self._watch, args=args, name="limits of a drained job", daemon=True)
        self._watcher.start()

    def close(self) -> None:
        self._job = None
        watcher, self._watcher = self._watcher, None
        if watcher is None:
            return
        self._over.set()
        # No signal is on its way after this, so that the handler before ours may come back.
        watcher.join()
        if self._main:
            signal.signal(signal.SIGUSR1, self._before)
        else:
            self._thread_gate.close()

    def _watch(self, soft: float | None, hard: float | None, number: int) -> None:
        if soft:
            if self._over.wait(soft):
                return
            self._soft = True
            self._strike(number)
        if hard:
            if self._over.wait(max(0.0, hard - (soft or 0.0))):
                return
            self.late = True
            self._strike(number)

    def _strike(self, number: int) -> None:
        if not self._main:
            self._thread_gate.stop(number, "soft")
        elif (main := threading.main_thread().ident) is not None:
            signal.pthread_kill(main, signal.SIGUSR1)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the form of a handler
        job = self._job
        if job is None:
            return
        if self.late:
            # Once: a second one might meet our own code, as the first may: then close() is called again.
            self._job = None
            raise RunnerKilled
        if self._soft:
            self._soft = False
            job.begin_stop("soft")
            raise SoftTimeLimit


PLACE = f"test:{os.getpid()}"
# Instead of a random number: the jitter of retries is none.
DICE = 0.5


class Performed(msgspec.Struct):
    """One start that has ended.

    Attributes:
        ended: its outcome; None: its process died.
        error: the exception that left its code, as it was raised; None: none did.
        notes: progress and log lines.
        late: it ran past its hard limit.
    """

    ended: Ended | None
    error: BaseException | None = None
    notes: list[Note] = msgspec.field(default_factory=list[Note])
    late: bool = False


@contextmanager
def outside_loop() -> Generator[None, None, None]:
    """Run a block in the thread of an event loop as if no loop ran there. Drivers such as Django's keep connections by
    thread: so a function runs in that of the test, and may block, and call :func:`asyncio.run`, as on a worker.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    if task is not None:
        asyncio._leave_task(loop, task)  # noqa: SLF001 - documented, for libraries
    asyncio._set_running_loop(None)  # noqa: SLF001 - documented, for libraries
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)  # noqa: SLF001 - as above
        if task is not None:
            asyncio._enter_task(loop, task)  # noqa: SLF001 - as above


class _NoMainLoop:
    """Says that no event loop waits elsewhere, so that ``async_to_sync`` makes one: the loop of this thread waits."""

    main_event_loop = main_event_loop_pid = None

    def __setattr__(self, *_: object) -> None: ...


class _InThisThread(Executor):
    """Runs each call at once, in the thread of the event loop that makes it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        sync: Any = sys.modules["asgiref.sync"].SyncToAsync
        future, before = Future[Any](), sync.threadlocal
        sync.threadlocal = _NoMainLoop()
        try:
            with outside_loop():
                future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - its caller gets it
            future.set_exception(error)
        finally:
            sync.threadlocal = before
        return future


@contextmanager
def sync_code_in_this_thread() -> Generator[None, None, None]:
    """Have ``sync_to_async``, and so Django's verbs for coroutines, use the connection of the test's own thread.
    asgiref would run that code in a thread of its own, whose connection does not see the transaction of the test.
    """
    sync: Any = getattr(sys.modules.get("asgiref.sync"), "SyncToAsync", None)
    if sync is None:
        yield
        return
    before, sync.single_thread_executor = sync.single_thread_executor, _InThisThread()
    try:
        yield
    finally:
        sync.single_thread_executor = before


async def in_thread_of_test(function: Callable[..., R], *args: Any) -> R:
    """Call a function where the test's own connection is: in the thread of the event loop, or, where an ``async def``
    test of Django's ``TestCase`` has its loop in another thread, in the one that waits for it.
    """
    sync: Any = sys.modules.get("asgiref.sync")
    if sync is not None and getattr(sync.AsyncToSync.executors, "current", None) is not None:
        returned: R = await sync.sync_to_async(function)(*args)
        return returned
    with outside_loop():
        return function(*args)


class InlineRunner:
    """The one runner of a drain: functions run in the caller's thread, coroutines on an event loop there."""

    def __init__(self, app: Headrace) -> None:
        self._app = app
        context = self._runner_context = replace(runner_context(app, PLACE, lambda: DICE), raised=self._raised)
        self._tasks = worker_tasks(app)
        self._own_context = replace(context, tasks=self._tasks, middlewares=())
        self._error: BaseException | None = None
        self._links: list[tuple[BaseException, TracebackType | None]] = []
        # The loop of a drain whose caller has none.
        self._loop: asyncio.Runner | None = None
        self._lifespans: dict[str, Lifespans] = {}

    def run(self, claim: Claim, crash: Crash | None) -> Performed:
        if not self._is_async(claim):
            return self._perform(claim, crash)
        self._loop = self._loop or asyncio.Runner(loop_factory=asyncio.new_event_loop)
        return self._loop.run(self._aperform(claim, crash))

    def close(self) -> None:
        held = self._lifespans.pop("async", None)
        self._leave()
        if self._loop is not None:
            if held is not None:
                self._loop.run(held.aleave())
            self._loop.close()

    async def arun(self, claim: Claim, crash: Crash | None) -> Performed:
        if self._is_async(claim):
            return await self._aperform(claim, crash)
        return await in_thread_of_test(self._perform, claim, crash)

    async def aclose(self) -> None:
        if (lifespans := self._lifespans.pop("async", None)) is not None:
            await lifespans.aleave()
        await in_thread_of_test(self._leave)

    def _is_async(self, claim: Claim) -> bool:
        task = self._tasks.get(claim.task)
        return task is not None and task.is_async

    def _new(self, claim: Claim) -> Lifespans | None:
        task = self._tasks.get(claim.task)
        if task is None or task.kind in self._lifespans:
            return None
        self._lifespans[task.kind] = made = Lifespans(of_kind(self._app.context.lifespans, task.kind))
        return made

    def _leave(self) -> None:
        for lifespans in self._lifespans.values():
            lifespans.leave()

    def _not_entered(self, claim: Claim, error: LifespanError) -> Performed:
        del self._lifespans[self._tasks[claim.task].kind]
        return Performed(Released(), error)

    def _context_of(self, claim: Claim) -> RunnerContext:
        task = self._tasks.get(claim.task)
        context = self._runner_context if task is None or task.kind != OWN else self._own_context
        state = None if task is None else self._lifespans[task.kind].state
        return context if state is None else replace(context, state=state)

    async def _aperform(self, claim: Claim, crash: Crash | None) -> Performed:
        try:
            if lifespans := self._new(claim):
                await lifespans.aenter()
        except LifespanError as error:
            return self._not_entered(claim, error)
        if crash is not None and crash.at == "start":
            return Performed(None)
        notes: list[Note] = []
        plan, late = self._plan(claim), False
        drive = Drive(MainGate(lambda _: ""), set())
        own = asyncio.ensure_future(aperform(self._context_of(claim), drive, claim, notes.append))
        drive.task = own

        def kill() -> None:
            nonlocal late
            late = True
            own.cancel()

        loop = asyncio.get_running_loop()
        limits: list[tuple[float | None, Callable[[], None]]] = []
        if plan is not None:
            limits = [(plan.timeout, lambda: drive.stop("soft")), (plan.hard_timeout, kill)]
        timers = [loop.call_later(after, act) for after, act in limits if after]
        try:
            ended = await own
        finally:
            for timer in timers:
                timer.cancel()
        return self._concluded(ended, notes, crash, late=late)

    def _perform(self, claim: Claim, crash: Crash | None) -> Performed:
        try:
            if lifespans := self._new(claim):
                lifespans.enter()
        except LifespanError as error:
            return self._not_entered(claim, error)
        if crash is not None and crash.at == "start":
            return Performed(None)
        notes: list[Note] = []
        gate = LimitGate(self._plan(claim))
        ended = perform(self._context_of(claim), gate, claim, notes.append)
        gate.close()
        return self._concluded(ended, notes, crash, late=gate.late)

    def _concluded(self, ended: Ended, notes: list[Note], crash: Crash | None, *, late: bool) -> Performed:
        error = self._restored()
        if late or crash is not None or isinstance(error, RunnerKilled):
            return Performed(None, None, notes, late)
        return Performed(ended, error, notes)

    def _plan(self, claim: Claim) -> RunPlan | None:
        # None: its start says why the job cannot be run.
        task = self._tasks.get(claim.task)
        try:
            return None if task is None else task.plan(claim.options)
        except HeadraceError:
            return None

    def _raised(self, error: BaseException) -> None:
        """Keep the exception that left the code: a runner keeps only its text."""
        self._error, self._links = error, []
        left, seen = [error], set[int]()
        while left:
            one = left.pop()
            if id(one) not in seen:
                seen.add(id(one))
                self._links.append((one, one.__traceback__))
                left += [other for other in (one.__cause__, one.__context__) if other is not None]

    def _restored(self) -> BaseException | None:
        for error, trace in self._links:
            error.__traceback__ = trace
        found, self._error, self._links = self._error, None, []
        return found


# Bytes of one payload.
MOST = 64 << 20


@contextmanager
def job_here(
    about: Claim, attempt: int, payloads: Mapping[str, Any], state: Any, notes: list[Note]
) -> Generator[CurrentJob, None, None]:
    """See :meth:`headrace.testing.Kit.job`; ``about``: task, queue, key and headers of the job."""
    if isinstance(attempt, bool) or attempt < 1:
        raise OptionsError(f"attempt counts starts from 1, so it is not {attempt!r}")
    inputs = tuple(
        Input(new_id(0), name, name, "succeeded", codec.encode(value, MOST, f"the payload {name}"))
        for name, value in payloads.items()
    )
    now = time.time_ns() // 1000
    claim = replace(about, id=new_id(0), token=now, number=now, ready=now, failures=attempt - 1, inputs=inputs)
    with running(CurrentJob(claim, notes.append, state=state)) as job:
        yield job
