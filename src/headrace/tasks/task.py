"""A task: a function with a name and options, which runs in place or is enqueued; and what it is called."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import update_wrapper
from pathlib import Path
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, ParamSpec

import msgspec

from headrace.errors import CorruptRecord, OptionsError
from headrace.model import elsewhere
from headrace.model.form import RETRY_PARTS, Options, Overrides
from headrace.model.ids import check_name
from headrace.model.options import Kind
from headrace.model.retry import NO_RETRY, Retry, with_parts
from headrace.model.signature import Signature
from headrace.settings import Settings, microseconds
from headrace.tasks.app_context import AppContext
from headrace.tasks.bound_task import BoundTask

_overrides = msgspec.msgpack.Decoder(Overrides)


class RunPlan(msgspec.Struct, frozen=True):
    """How a worker runs one job: the task's options, the job's own and the settings put together.

    Attributes:
        retry: when it runs again after an error.
        timeout: soft limit, seconds; None: none.
        hard_timeout: from the start to the kill, seconds; None: none.
        result_ttl: microseconds that a success stays.
        failure_ttl: microseconds that any other end stays.
        secrets: which of its arguments are never shown.
    """

    retry: Retry
    timeout: float | None
    hard_timeout: float | None
    result_ttl: int
    failure_ttl: int
    secrets: str = ""


NO_PLAN = RunPlan(NO_RETRY, None, None, 0, 0)


def plan_of(name: str, task: Options, stored: bytes, settings: Settings, secrets: str) -> RunPlan:
    """How to run a job that was stored with these options. Raises CorruptRecord: no enqueue wrote these bytes."""
    try:
        own = _overrides.decode(stored) if stored else Overrides()
        numbers = {part: getattr(own, name) for name, (part, _) in RETRY_PARTS.items()}
        retry = with_parts(task.retries, {part: n for part, n in numbers.items() if n is not None})
    except (msgspec.MsgspecError, OptionsError, ValueError) as error:
        raise CorruptRecord(
            f"the stored options of a job of {name} cannot be read ({error}): another program wrote them"
        ) from None
    timeout = _first(own.timeout, task.timeout, 0.0)
    hard = _first(own.hard_timeout, task.hard_timeout, 0.0) or (timeout + settings.kill_timeout if timeout else 0.0)
    kept = microseconds(_first(own.result_ttl, task.result_ttl, settings.result_ttl))
    kept_failed = microseconds(_first(own.failure_ttl, task.failure_ttl, settings.failure_ttl))
    return RunPlan(retry, timeout or None, hard or None, kept, kept_failed, secrets)


def _first(own: float | None, task: float | None, default: float) -> float:
    if own is not None:
        return own
    return default if task is None else task


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")
    V = TypeVar("V", default=R)
else:
    from typing import TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")
    V = TypeVar("V")

# Distinct options blobs of one task whose plans are remembered.
PLANS = 256


class Task(BoundTask[P, R], Generic[P, R, V]):
    """A function that workers run. ``P`` and ``R``: what it takes and what a job of it results in.

    Calling it runs the function in place; ``V`` is what that returns: ``R``, or a coroutine of it.

    Attributes:
        name: in the store.
        function: what was decorated.
        kind: who runs it: process, fork, thread or async.
        is_async: whether ``function`` is a coroutine function.
        defaults: the task's options.
        limits: names of its limits.
        given: what its definition said, with what its ``Tasks`` says for all; None: it is not a user's.
        trace: ``parent`` or ``link``: the trace that its first starts belong to; empty: as the setting ``traces`` says.
    """

    if not TYPE_CHECKING:
        # V has a default for type checkers, which the typing of Python 3.11 cannot express.
        __class_getitem__ = classmethod(GenericAlias)

    def __init__(
        self, context: AppContext, name: str, function: Callable[P, V], kind: Kind, options: Options, *,
        loose: bool = False, limits: tuple[str, ...] = (), encrypt: bool = False,
    ) -> None:  # fmt: skip
        self.signature = Signature(name, function, context.types, loose=loose)
        self.name = name
        self.function = function
        self.is_async = kind == "async"
        self.given: Mapping[str, Any] | None = None
        self.trace = ""
        self.settle_in(context, kind, options, limits, encrypt=encrypt)
        # Not the function's own attributes: one called `name` would rename the task.
        update_wrapper(self, function, updated=())

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> V:
        """Run the function here and now; no server is needed, and there is no current job."""
        return self.function(*args, **kwargs)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Not while it is being made, or copied: a task without its name has no attributes to tell of.
            task = self.__dict__.get("name", "task")
            raise AttributeError(elsewhere.of_task(task, name), name=name, obj=self)

    def __reduce__(self) -> str:
        """Travel between processes by name, as functions do."""
        return self.function.__qualname__

    def unpack(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Stored arguments, to call the function with; raises as :meth:`headrace.model.signature.Signature.unpack`."""
        return self.signature.unpack(data)

    def pack_result(self, value: object) -> bytes:
        """What the function returned, as stored; raises as :meth:`headrace.model.type_changes.ResultType.pack`."""
        return self.signature.result.pack(value, self.context.client.settings.max_result)

    def settle_in(
        self, context: AppContext, kind: Kind, options: Options, limits: tuple[str, ...], *, encrypt: bool
    ) -> None:
        """Take these options, at its definition and when an application with defaults includes it."""
        self.signature.encrypted = encrypt
        super().__init__(context, self.signature, options)
        self.kind: Kind = kind
        self.defaults = options
        self.limits = limits
        self._plans: dict[bytes, RunPlan] = {}

    def prepare(self) -> None:
        """Make what a first job would make for itself: in a process that is forked for each, every job is first."""
        self.plan(b"")
        self.signature.prepare_decoders()

    def plan(self, options: bytes) -> RunPlan:
        """How to run a job that was stored with these options. Raises CorruptRecord: no enqueue wrote these bytes."""
        plan = self._plans.get(options)
        if plan is None:
            if len(self._plans) >= PLANS:
                self._plans.clear()
            plan = self._plans[options] = plan_of(
                self.name, self.defaults, options, self.context.client.settings, self.places(self.signature.secrets)
            )
        return plan

    def __repr__(self) -> str:
        return f"<Task {self.name}>"


# The budget that the store assumes when a record names none (journal.lua).
DEFAULT_CRASHES = 3


def budgets(tasks: Mapping[str, Task[..., Any, Any]], default: int) -> list[str | int]:
    """Fields by which a worker tells the crash budgets of its tasks: counts for jobs that were enqueued by name."""
    found: list[str | int] = [] if default == DEFAULT_CRASHES else ["budget:", default]
    for name, task in tasks.items():
        if task.defaults.max_crashes:
            found += (f"budget:{name}", task.defaults.max_crashes)
    return found


def task_name_of(function: Any, given: Any) -> str:
    """The given name, or ``module.function``. Raises OptionsError: it cannot be named, or cannot be a task."""
    if inspect.isclass(function) or not callable(function):
        raise OptionsError(f"@app.task takes a function or coroutine function, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise OptionsError(
            f"{function.__qualname__} yields, but a job has one result: return a list, or enqueue one job per item"
        )
    try:
        inspect.signature(function)
    except (ValueError, TypeError):
        raise OptionsError(f"{function!r} has no signature that can be read: wrap it in a function") from None
    if given is not None:
        return check_task_name(given)
    qualified = getattr(function, "__qualname__", None)
    if qualified is None or "<lambda>" in qualified:
        raise OptionsError(
            f"{function!r} has no name of its own: define it with def, or name a task with @app.task(name=...)"
        )
    return check_task_name(f"{_module_name(function.__module__)}.{qualified.replace('<locals>.', '')}")


def check_found(function: Any) -> None:
    """Refuse as a task what a worker would not find where it imports the module. A task that is given a name is not
    checked: a factory, say, defines its tasks in a function that each worker calls. Raises OptionsError: it is a
    builtin, a method, or defined inside of another function.
    """
    qualified = getattr(function, "__qualname__", "")
    if inspect.isbuiltin(function):
        raise OptionsError(f"{qualified} is a builtin: write a function of yours that calls it, with annotations")
    if "<locals>" in qualified:
        raise OptionsError(
            f"{qualified.replace('<locals>.', '')} is defined inside of another function, where a worker that imports "
            f"the module does not find it: move it to the module; or, where each worker calls that function too, "
            f"name it with @app.task(name=...)"
        )
    if "." in qualified:
        raise OptionsError(
            f"{qualified} is a method, and a job has no object to call it on: make it a function of the module; a "
            f"static one may be named with @app.task(name=...)"
        )


def check_task_name(name: Any) -> str:
    if not isinstance(name, str):
        raise OptionsError(f"the name of a task must be a text, not {name!r}")
    try:
        return check_name("task", name)
    except OptionsError as error:
        raise OptionsError(f"{error}; @app.task(name=...) gives another") from None


def _module_name(name: str) -> str:
    """The name by which others import a module: a program that is run is called ``__main__``, and only there."""
    if name not in ("__main__", "__mp_main__"):
        return name
    main = sys.modules[name]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    if file is None:
        return name
    path = Path(file).resolve()
    parts = [path.stem]
    for folder in path.parents:
        if not (folder / "__init__.py").exists():
            break
        parts.append(folder.name)
    return ".".join(reversed(parts))


def place_of(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)
