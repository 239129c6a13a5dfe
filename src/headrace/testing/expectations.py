"""Expectations of a test about enqueued jobs, and stand-ins for the code of tasks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import msgspec

from headrace.app import Headrace
from headrace.errors import HeadraceError
from headrace.model.job_record import Record
from headrace.tasks.job_handle import Job
from headrace.tasks.task import Task

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
        """What of a job is otherwise."""
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
    """A job of a test, as its record says just after it was stored. ``delay``, ``now``: microseconds; a job that was
    enqueued for a time (``at=``) has no delay of its own.
    """
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
    """Arguments by parameter, defaults included."""
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
