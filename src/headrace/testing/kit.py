"""The test kit: an application on a private server, whose jobs run when the test says so; expectations about enqueued
jobs; stand-ins for the code of tasks.

Owns what a test has changed, and undoes it: the application's server, stubs, the keys of the test. What a drain does
is in drain.py; how a job runs, in inline_runner.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Literal, NoReturn, Self, TypeVar

import msgspec

from headrace.app import Headrace
from headrace.context import CurrentJob, StopReason, current_job
from headrace.errors import HeadraceError, OptionsError, StoreUnavailable
from headrace.model.headers import packed
from headrace.model.job import Claim
from headrace.model.job_record import Record
from headrace.protocol.consume import Note
from headrace.running_job import job_if_any
from headrace.tasks.bound_task import BoundTask
from headrace.tasks.job_handle import Job
from headrace.tasks.task import Task
from headrace.testing.drain import DrainDriver, Draining
from headrace.testing.inline_runner import (
    Crash,
    Faults,
    Moment,
    RunnerKilled,
    job_here,
    sync_code_in_this_thread,
)
from headrace.testing.kit_store import (
    Drained,
    Takeover,
    VirtualClock,
    Wire,
    Wishes,
    check_ended,
    private_server,
    wishes,
)
from headrace.worker.runner.interrupts import SIGNALS
from headrace.workflows.node import name_of
from headrace.workflows.run import WorkflowRun

Mode = Literal["manual", "inline"]
Stop = Literal["timeout", "cancel", "shutdown"]
AnyTask = BoundTask[..., Any] | str

R = TypeVar("R")

# The runner's own words for what stops a job.
_STOPS: dict[Stop, StopReason] = {"timeout": "soft", "cancel": "cancel", "shutdown": "interrupt"}
_INLINE = Wishes(raises=False)


class Kit:
    """An application during one test.

    ``with Kit(app) as kit:`` or pytest's fixture ``headrace_app``. Until the block ends, the application uses a private
    server and a namespace of this test, wherever it and its tasks were imported. Nothing runs by itself: ``drain``
    runs what waits, in the caller's thread, by the code and the scripts that workers run.

    Attributes:
        app: the application.
        clock: the time of the test; ``clock.advance(hours=25)``.
        url: of the server that the test uses.
        mode: ``manual``, or ``inline``: each job runs within its enqueue, and a workflow within its start. It may be
            set at any time.
        notes: progress and log lines of jobs that :meth:`job` made.
    """

    def __init__(self, app: Headrace, *, url: str | None = None, mode: Mode = "manual") -> None:
        """Make one; the block takes the application over. ``url``: of a server that is not private and that the test
        may use anyway; the keys of other namespaces are left alone. What the application or ``HEADRACE_URL`` names is
        never used. ``mode``: ``manual`` or ``inline``. Raises OptionsError: there is no such mode.
        """
        if mode not in ("manual", "inline"):
            raise OptionsError(f"mode must be manual or inline, not {mode!r}")
        self.app = app
        self.clock = VirtualClock(self._passed)
        self._takeover = Takeover(app)
        self.url = url or ""
        self.mode: Mode = mode
        self.notes: list[Note] = []
        self._faults = Faults()
        self._log: list[Enqueued] = []
        self._expectations: list[Expectation] = []
        self._stubs: list[Stub] = []
        self._tie = ExitStack()

    def __enter__(self) -> Self:
        self.url = self.url or private_server().url
        # Transactions that a test leaves open are not the user's.
        if (deferral := self.app.client.deferral) is not None:
            self._tie.enter_context(deferral.in_test())
        self._tie.enter_context(sync_code_in_this_thread())
        wire = Wire(self.clock, self._faults, self._stored, self._astored)
        settings = self._takeover.begin(self.url, wire, self._progress)
        self._driver = DrainDriver(self.app, self.clock, self._faults, self.url, settings)
        try:
            self._driver.declare()
        except BaseException:
            self._tie.close()
            self._takeover.give_back()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(check=kind is None)

    def close(self, *, check: bool = True) -> None:
        """Give the application its own server back, and remove the keys of the test. Closing twice is fine. ``check``:
        also look at what the test leaves. Raises AssertionError: the store breaks a promise of Headrace, a job still
        runs, an ``assert_enqueued`` was the head of no block, or a fault was asked for and nothing met it.
        """
        if not self._takeover.begun:
            return
        for stub in reversed(self._stubs):
            stub.remove()
        self._tie.close()
        self._takeover.give_back()
        problems: list[str] = []
        try:
            if check:
                problems = self._takeover.problems(self._driver.dead)
                unused = [one.wanted for one in self._expectations if not one.entered]
                problems += [f"an assertion about {wanted} without `with`" for wanted in unused]
                problems += [f"{text}, which nothing met" for text in self._faults.unmet()]
        finally:
            self._driver.close()
            self._takeover.end()
        if problems:
            raise AssertionError("the test leaves behind:\n  " + "\n  ".join(problems))

    @property
    def namespace(self) -> str:
        """The namespace of the test's keys."""
        return self._takeover.namespace

    def drain(
        self,
        run: WorkflowRun | None = None,
        *,
        queue: str | None = None,
        scheduled: bool | None = None,
        retries: bool | None = None,
        limit: int = 1000,
        raises: bool = True,
    ) -> Drained:
        """Run what waits, one job after the other, and what that enqueues, until nothing is left that may run now.

        Functions run in this thread, coroutines on an event loop of the drain. A job is claimed, converted, put into
        its middleware, limited, settled and tried again as a worker does it, and its record is the same afterwards.
        Raises DrainError: the limit is reached, the text says what is left; or the workflow waits for something else.
        Raises WaitRefused: an event loop runs in this thread: await :meth:`adrain`. Cost: five round trips, and one for
        each job, to a server on this machine.

        Args:
            run: drain until this workflow has ended, which must have been started; ``scheduled`` and ``retries``
                are True then if they are not given.
            queue: only jobs of this queue.
            scheduled: let time pass (see ``clock``) until what is scheduled is due.
            retries: let time pass until the retries of what ran here are due. An error that is tried again ends the
                drain only without this.
            limit: most starts.
            raises: end with the first error of a job, as its code raised it. Its record is stored before.
        """
        asked = wishes(queue, scheduled, retries, limit, whole_workflow=run is not None, raises=raises)
        drained = self._driver.run(Draining.steps, asked)
        if run is not None:
            check_ended(f"{run.id} of {run.definition}", str(run.state), drained)
        return drained

    async def adrain(
        self,
        run: WorkflowRun | None = None,
        *,
        queue: str | None = None,
        scheduled: bool | None = None,
        retries: bool | None = None,
        limit: int = 1000,
        raises: bool = True,
    ) -> Drained:
        """See :meth:`drain`; coroutines run on this event loop, functions in its thread, while the loop waits."""
        asked = wishes(queue, scheduled, retries, limit, whole_workflow=run is not None, raises=raises)
        drained = await self._driver.arun(Draining.steps, asked)
        if run is not None:
            check_ended(f"{run.id} of {run.definition}", str(await run.astate()), drained)
        return drained

    def job(
        self,
        task: AnyTask = "test",
        *,
        attempt: int = 1,
        queue: str = "default",
        key: str = "",
        payloads: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        state: Any = None,
    ) -> AbstractContextManager[CurrentJob]:
        """Make a job the current one in a ``with`` block, for tasks that are called like functions in it.

        It is stored nowhere. What it says of itself is added to ``notes``. Raises OptionsError: ``attempt`` is not a
        number from 1 on.

        Args:
            task: whose job it is.
            attempt: which start, from 1; those before it have failed.
            payloads: what ``current_job().payloads`` gives, by the names of the nodes.
            headers: texts by name that jobs which it makes inherit.
            state: what lifespans would have yielded.
        """
        about = Claim("", 0, queue, 0, name_of(task, "the test kit"), b"", key=key, headers=packed(headers or {}))
        return job_here(about, attempt, payloads or {}, state, self.notes)

    def stub(
        self,
        task: Task[..., R, Any],
        *,
        returns: R | None = None,
        raises: BaseException | type[BaseException] | None = None,
        runs: Callable[..., Any] | None = None,
        times: int = 0,
    ) -> Stub:
        """Have a task return or raise this instead of running its code, until the test or its ``with`` block ends.
        ``runs``: call this with the arguments, and return what it returns. ``times``: of this many calls; the next one
        runs its own code. 0: of all.
        """
        made = Stub(task, returns, raises, runs, times)
        self._stubs.append(made)
        return made

    def assert_enqueued(
        self,
        task: AnyTask,
        *args: Any,
        queue: str | None = None,
        key: str | None = None,
        priority: int | None = None,
        delay: float | None = None,
        count: int | None = None,
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Expectation:
        """``with kit.assert_enqueued(send, 7): ...`` fails unless the block enqueues such a job of the task.

        It sees what is enqueued within the block through this application and process, also jobs that have ended by its
        end; not the nodes of workflows. ``async with`` works too. Raises TypeError: the task has no such parameter.

        Args:
            args, kwargs: of the job, by the task's parameters; those that are not named may be anything. A value
                that is equal to everything (``unittest.mock.ANY``) may stand for any.
            queue, key, priority: of the job.
            delay: seconds until it is due, to the second.
            count: how many such jobs, exactly; without it, at least one.
            arguments: those that have the name of an option of this method.
        """
        name = name_of(task, "the test kit")
        wanted = Wanted(name, wanted_arguments(self.app, name, args, kwargs, arguments), queue, key, priority, delay)
        made = Expectation(self._log, wanted, count)
        self._expectations.append(made)
        return made

    def refute_enqueued(self, task: AnyTask, *args: Any, **kwargs: Any) -> Expectation:
        """``with kit.refute_enqueued(send): ...`` fails if the block enqueues one; see :meth:`assert_enqueued`."""
        return self.assert_enqueued(task, *args, **kwargs, count=0)

    def all_enqueued(self, task: AnyTask | None = None, *, queue: str | None = None) -> list[Enqueued]:
        """Every job that was enqueued during the test, oldest first, whether it has ended or not."""
        name = None if task is None else name_of(task, "the test kit")
        return [one for one in self._log if name in (None, one.task) and queue in (None, one.queue)]

    def crash(self, task: AnyTask | None = None, *, at: Moment = "end", times: int = 1, worker: bool = False) -> None:
        """Have the next start end as if its process died; called by the code of a job, that job, at this line.

        Args:
            task: only a job of this task.
            at: ``start``: before its code runs; ``end``: when that has run and nothing was told of it.
            times: this many starts.
            worker: the whole worker dies: the drain ends, and the job runs until the lease is over: ``clock.advance``.
        """
        if job_if_any() is not None:
            raise RunnerKilled
        name = "" if task is None else name_of(task, "the test kit")
        self._faults.crashes += [Crash(name, at, worker)] * times

    def interrupt(self, reason: Stop = "shutdown") -> NoReturn:
        """Raise in the job that runs here what a worker raises: of a ``timeout``, a ``cancel`` or a ``shutdown``. For
        what the job calls, such as ``Mock(side_effect=kit.interrupt)``: it decides where the job is stopped. Raises
        NoCurrentJob: no job runs here.
        """
        job, word = current_job(), _STOPS[reason]
        job.begin_stop(word)
        raise SIGNALS[word]

    def fail(self, error: Exception | None = None, *, times: int = 1) -> None:
        """Have the next call of the application to its server fail with this error; the server never sees it.
        ``error``: without one, :class:`headrace.errors.StoreUnavailable`. ``times``: this many calls.
        """
        text = "the test kit lets the server be unreachable"
        self._faults.failures.extend(error or StoreUnavailable(text) for _ in range(times))

    def lose_reply(self, *, give_up: bool = False, times: int = 1) -> None:
        """Have the reply of the next call of the application be lost, when the server has done it. ``give_up``: the
        caller gets ``StoreUnavailable`` and does not know what was done; otherwise the call is repeated, as it is on a
        connection that fails, which does nothing twice. ``times``: this many calls.
        """
        lost = "the test kit has lost the reply"
        unknown = f"{lost}: the call may or may not have been applied"
        for _ in range(times):
            self._faults.replies.append(StoreUnavailable(unknown) if give_up else ConnectionResetError(lost))

    def _stored(self, made: list[tuple[Record, int]]) -> None:
        self._note(made)
        if self.mode == "inline" and not self._driver.busy:
            self._driver.run_apart(Draining.steps, _INLINE)

    async def _astored(self, made: list[tuple[Record, int]]) -> None:
        self._note(made)
        if self.mode == "inline" and not self._driver.busy:
            await self._driver.arun(Draining.steps, _INLINE)

    def _note(self, made: list[tuple[Record, int]]) -> None:
        now = self.clock.microseconds
        self._driver.queues.update(one.queue for one, _ in made)
        self._log += [described(self.app, one, self.app.jobs.handle(one), delay, now) for one, delay in made]

    def _progress(self) -> int | None:
        return None if self._driver.busy else self._driver.count

    def _passed(self, by: int) -> None:
        """The clock was moved: what the server itself would let expire by then, expires; and what is due is ready."""
        self._takeover.expire(by)
        if not self._driver.busy:
            self._driver.run_apart(Draining.tidy, Wishes())

    def __repr__(self) -> str:
        return f"<Kit of {self.app!r}>"


# Jobs that a failed assertion shows.
SHOWN = 5


class Enqueued(msgspec.Struct, frozen=True):
    """One job that was enqueued during the test.

    Attributes:
        task: name of its task.
        arguments: by parameter, as the task will get them, those with a default included.
        queue, key, priority: as enqueued.
        delay: seconds from the enqueue until it is due; 0: at once.
        job: a handle on it.
    """

    task: str
    arguments: Mapping[str, Any]
    queue: str
    key: str
    priority: int
    delay: float
    job: Job[Any]

    def __str__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        more = [f"delay={self.delay:g}"] if self.delay else []
        more += [f"key={self.key!r}"] if self.key else []
        more += [f"priority={self.priority}"] if self.priority else []
        return f"{self.task}({said}) in {self.queue}" + (f", {', '.join(more)}" if more else "")


class Wanted(msgspec.Struct, frozen=True):
    """A description of jobs; what is None, or not named among the arguments, may be anything."""

    task: str
    arguments: Mapping[str, Any]
    queue: str | None = None
    key: str | None = None
    priority: int | None = None
    delay: float | None = None

    def misses(self, one: Enqueued) -> list[str]:
        if one.task != self.task:
            return [f"its task is {one.task}"]
        found = [
            f"{name} is {one.arguments[name]!r}, not {value!r}" if name in one.arguments else f"it has no {name}"
            for name, value in self.arguments.items()
            if name not in one.arguments or not value == one.arguments[name]  # noqa: SIM201 - the wanted one decides
        ]
        for name in ("queue", "key", "priority", "delay"):
            wanted, real = getattr(self, name), getattr(one, name)
            same = abs(wanted - real) < 1 if name == "delay" and wanted is not None else wanted == real
            if wanted is not None and not same:
                found.append(f"{name} is {real!r}, not {wanted!r}")
        return found

    def __str__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        options = ("queue", "key", "priority", "delay")
        more = [f"{name}={getattr(self, name)!r}" for name in options if getattr(self, name) is not None]
        return f"{self.task}({said or '...'})" + (f" with {', '.join(more)}" if more else "")


class Expectation:
    """A block that must enqueue what is wanted, or must not; it sees what is enqueued in it, by any thread or task.

    Attributes:
        jobs: what was enqueued in the block and is as wanted; complete when the block has ended.
        entered: whether it was the head of a block: without one it asserts nothing.
    """

    def __init__(self, log: Sequence[Enqueued], wanted: Wanted, count: int | None) -> None:
        """Use ``kit.assert_enqueued(...)``; ``count`` None: at least one."""
        self.jobs: list[Enqueued] = []
        self.entered = False
        self.wanted = wanted
        self._log = log
        self._count = count
        self._first = 0

    def __enter__(self) -> Self:
        self.entered = True
        self._first = len(self._log)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        __tracebackhide__ = True
        seen = self._log[self._first :]
        self.jobs = [one for one in seen if not self.wanted.misses(one)]
        if kind is None and (not self.jobs if self._count is None else len(self.jobs) != self._count):
            raise AssertionError(self._told(seen))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        __tracebackhide__ = True
        self.__exit__(kind)

    def _told(self, seen: Sequence[Enqueued]) -> str:
        wanted = {None: "at least one job", 0: "no job", 1: "one job"}.get(self._count, f"{self._count} jobs")
        lines = [f"expected {wanted} {self.wanted}, and the block enqueued {len(self.jobs) or 'none'}"]
        if self.jobs:
            lines += _shown([f"as wanted: {one}" for one in self.jobs])
        else:
            others = sorted(seen, key=lambda one: (one.task != self.wanted.task, len(self.wanted.misses(one))))
            lines += _shown([f"nearest: {one}: {'; '.join(self.wanted.misses(one))}" for one in others])
            lines += [] if others else ["it enqueued nothing at all"]
        return "\n  ".join(lines)


def _shown(lines: list[str]) -> list[str]:
    more = len(lines) - SHOWN
    return lines[:SHOWN] + ([f"and {more} more"] if more > 0 else [])


def described(app: Headrace, record: Record, job: Job[Any], delay: int, now: int) -> Enqueued:
    """A job as its record says. ``delay``, ``now``: microseconds; with ``at=`` a job has no delay of its own."""
    task = app.tasks.get(record.task)
    arguments: dict[str, Any] = {}
    if task is not None:
        try:
            seal = app.client.keys.seal
            args, kwargs = task.unpack((record if seal is None else seal.opened_record(record)).packed_args)
            arguments = bound(task, args, kwargs)
        except HeadraceError as error:
            arguments = {"?": str(error)}
    if not delay and record.state == "scheduled":
        delay = max(0, record.due_us - now)
    return Enqueued(record.task, arguments, record.queue, record.key, record.priority, delay / 1e6, job)


def bound(task: Task[..., Any, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    found = inspect.signature(task).bind(*args, **kwargs)
    found.apply_defaults()
    return found.arguments


def wanted_arguments(
    app: Headrace, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], ready: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What a test names of a job's arguments, by parameter; TypeError where the task has no such one."""
    found = {**kwargs, **(ready or {})}
    task = app.tasks.get(name)
    if task is None:
        if args:
            raise TypeError(f"{name} is not a task of this application: name its arguments, by keyword")
        return found
    try:
        return dict(inspect.signature(task).bind_partial(*args, **found).arguments)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None


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
        self._task, self._times = task, times
        self._returns, self._raises, self._runs = returns, raises, runs
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
