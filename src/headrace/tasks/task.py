"""A task: a function with a name and options, which runs in place or is enqueued.

Owns what a worker asks of a task. Its verbs are those of a BoundTask with the options of the task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import update_wrapper
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Unpack

from headrace.model import elsewhere
from headrace.model.form import Options
from headrace.model.options import CallOptions, Kind
from headrace.model.signature import Signature
from headrace.tasks.app_context import AppContext
from headrace.tasks.bound_task import BoundTask
from headrace.tasks.job_handle import Job
from headrace.tasks.run_plan import RunPlan, plan_of
from headrace.tasks.unsent_job import UnsentJob

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


class Task(Generic[P, R, V]):
    """A function that workers run. ``P`` and ``R``: what it takes and what a job of it results in.

    Calling it runs the function in place; ``V`` is what that returns: ``R``, or a coroutine of it.

    Attributes:
        name: in the store.
        function: what was decorated.
        kind: who runs it: process, fork, thread or async.
        is_async: whether ``function`` is a coroutine function.
        defaults: the task's options.
        limits: names of its limits.
        trace: ``parent`` or ``link``: of which trace its first starts are; empty: as the setting ``traces`` says.
        context: the application that it belongs to, if there is one already.
    """

    if not TYPE_CHECKING:
        # V has a default for type checkers, which the typing of Python 3.11 cannot express.
        __class_getitem__ = classmethod(GenericAlias)

    def __init__(
        self,
        context: AppContext,
        name: str,
        function: Callable[P, V],
        kind: Kind,
        options: Options,
        *,
        loose: bool = False,
        limits: tuple[str, ...] = (),
    ) -> None:
        """Use ``@app.task``."""
        self.name = name
        self.function = function
        self.kind: Kind = kind
        self.is_async = kind == "async"
        self.defaults = options
        self.limits = limits
        self.trace = ""
        self.signature = Signature(name, function, context.types, loose=loose)
        self.context = context
        self._bound: BoundTask[P, R] = BoundTask(context, self.signature, options)
        self._plans: dict[bytes, RunPlan] = {}
        # Not the function's own attributes: one called `name` would rename the task.
        update_wrapper(self, function, updated=())

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> V:
        """Run the function here and now; no server is needed, and there is no current job."""
        return self.function(*args, **kwargs)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say what the verb of another queue is called here."""
            # Not while it is being made, or copied: a task without its name has no attributes to tell of.
            task = self.__dict__.get("name", "task")
            raise AttributeError(elsewhere.of_task(task, name), name=name, obj=self)

    def __reduce__(self) -> str:
        """Travel between processes by name, as functions do."""
        return self.function.__qualname__

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a job that runs this task: once this returns, no fault of a worker loses it.

        The arguments are checked as the worker will see them.

        Raises:
            ArgumentError: an argument is missing, unexpected, of the wrong type, or cannot be sent; names it.
            PayloadTooLarge: the arguments exceed the settings' ``max_payload``.
            DuplicateJob: it is unique with ``clash="raise"``, and another job has its name.
            StoreUnavailable: no answer within the settings' ``timeout``; the job may or may not be stored.
            StoreFull: the server refused to store it.

        Cost: one round trip.
        """
        return self._bound.enqueue(*args, **kwargs)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """See :meth:`enqueue`."""
        return await self._bound.aenqueue(*args, **kwargs)

    def enqueue_json(self, args: str | bytes = "[]", kwargs: str | bytes = "{}") -> Job[R]:
        """As :meth:`enqueue`, with arguments that are JSON already.

        ``fetch.enqueue_json('["https://…"]', '{"sizes": [64]}')``: they are stored as they
        are, and read as JSON by the annotations: bytes from base64, datetimes and decimals from texts, integers as keys
        of dictionaries.

        Args:
            args: an array, the arguments by position.
            kwargs: an object, those by name.

        Raises:
            ArgumentError, PayloadTooLarge, StoreUnavailable, StoreFull: as :meth:`enqueue`.

        Cost: one round trip.
        """
        return self._bound.enqueue_json(args, kwargs)

    async def aenqueue_json(self, args: str | bytes = "[]", kwargs: str | bytes = "{}") -> Job[R]:
        """See :meth:`enqueue_json`."""
        return await self._bound.aenqueue_json(args, kwargs)

    def broadcast(self, /, *args: P.args, **kwargs: P.kwargs) -> list[Job[R]]:
        """Have each worker that lives now run this once, before what waits in its queues; a job for each.

        Each runs at most once: what fails, or what its worker leaves behind when it ends, has ended. A worker that does
        not know the task cancels it. No worker, no job: the list is empty.

        Raises:
            ArgumentError, PayloadTooLarge, StoreUnavailable, StoreFull: as :meth:`enqueue`.
            OptionsError: an option cannot be kept: a delay, an order, a request id; or more than 1,000 workers live.

        Cost: two round trips.
        """
        return self._bound.broadcast(*args, **kwargs)

    async def abroadcast(self, /, *args: P.args, **kwargs: P.kwargs) -> list[Job[R]]:
        """See :meth:`broadcast`."""
        return await self._bound.abroadcast(*args, **kwargs)

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> UnsentJob[R]:
        """A job that is not stored yet, for ``app.enqueue_many``, or to be packed for another sender.

        Raises:
            ArgumentError, PayloadTooLarge: as :meth:`enqueue`.
            OptionsError: it is ordered, and has no key.

        Cost: none.
        """
        return self._bound.job(*args, **kwargs)

    def options(self, /, **options: Unpack[CallOptions]) -> BoundTask[P, R]:
        """The same task with other options, for one or more jobs; see :class:`headrace.model.options.CallOptions`.

        Raises:
            OptionsError: names the option that is out of range, or the two that contradict each other.
        """
        return self._bound.options(**options)

    def unpack(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Stored arguments, to call the function with.

        Raises:
            ArgumentError: they do not fit the function as it is here.
            CorruptArguments: no enqueue wrote these bytes.
        """
        return self.signature.unpack(data)

    def pack_result(self, value: object) -> bytes:
        """What the function returned, as it is stored.

        Raises:
            ArgumentError: it has a type that cannot be sent.
            PayloadTooLarge: it exceeds the settings' ``max_result``.
            ResultMismatch: it does not fit the return annotation.
        """
        return self.signature.result.pack(value, self.context.client.settings.max_result)

    def prepare(self) -> None:
        """Make what a first job would make for itself: in a process that is forked for each, every job is first."""
        self.plan(b"")
        self.signature.prepare()

    def plan(self, options: bytes) -> RunPlan:
        """How to run a job that was stored with these options.

        Raises:
            CorruptOptions: no enqueue wrote these bytes.
        """
        plan = self._plans.get(options)
        if plan is None:
            if len(self._plans) >= PLANS:
                self._plans.clear()
            plan = self._plans[options] = plan_of(
                self.name, self.defaults, options, self.context.client.settings, self.signature.secrets
            )
        return plan

    def __repr__(self) -> str:
        return f"<Task {self.name}>"


# The budget that the store assumes when a record names none (reclaim.lua, crash.lua).
DEFAULT_CRASHES = 3


def budgets(tasks: Mapping[str, Task[..., Any, Any]], default: int) -> list[str | int]:
    """Fields by which a worker says of which crash budget its tasks are: counts for jobs that were enqueued by name."""
    found: list[str | int] = [] if default == DEFAULT_CRASHES else ["budget:", default]
    for name, task in tasks.items():
        if task.defaults.max_crashes:
            found += (f"budget:{name}", task.defaults.max_crashes)
    return found
