"""A task: a function with a name and options, which runs in place or is enqueued.

Owns the way from a typed call to a new job, and what a worker asks of a task. Sends through the application's client.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import update_wrapper
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Unpack

import msgspec

from headrace.context import inherited
from headrace.errors import CorruptOptions, OptionsError
from headrace.model import elsewhere
from headrace.model.form import RETRY_PARTS, Form, NewJob, Options, Overrides, form_of, of_call
from headrace.model.headers import added, packed
from headrace.model.ids import id_at, make_tail, ordered_id, unique_id
from headrace.model.option_checks import check_strategy
from headrace.model.options import CallOptions, Kind
from headrace.model.retry import NO_RETRY, Retry
from headrace.model.signature import Signature, Unchecked
from headrace.model.unique_names import check_by, unique_name
from headrace.protocol import overviews, produce
from headrace.protocol.batches import Accepted
from headrace.settings import microseconds
from headrace.store.client import Client, Steps
from headrace.tasks.app_context import AppContext
from headrace.tasks.job_handle import Job
from headrace.tasks.limit import check_cost
from headrace.tasks.submission import Submission, around, asubmit, of_rows, submit
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
# Workers that a broadcast goes to.
MOST_WORKERS = 1000

_overrides = msgspec.msgpack.Decoder(Overrides)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a worker runs one job: the task's options, the job's own and the settings put together.

    Attributes:
        retry: when it runs again after an error.
        timeout: soft limit, seconds; None: none.
        hard_timeout: from the start to the kill, seconds; None: none.
        result_ttl: microseconds that a success stays.
        failure_ttl: microseconds that any other end stays.
        strategy: which runner gets it; empty: as the worker says.
        secrets: which of its arguments are never shown.
    """

    retry: Retry
    timeout: float | None
    hard_timeout: float | None
    result_ttl: int
    failure_ttl: int
    strategy: str = ""
    secrets: str = ""


NO_PLAN = Plan(NO_RETRY, None, None, 0, 0)


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
        self._plans: dict[bytes, Plan] = {}
        # Not the function's own attributes: one called `name` would rename the task.
        update_wrapper(self, function, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> V:
        """Run the function here and now; no server is needed, and there is no current job."""
        return self.function(*args, **kwargs)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say what the verb of another queue is called here."""
            # Not while it is being made, or copied: a task without its name has no attributes to tell of.
            task = self.__dict__.get("name", "task")
            raise AttributeError(elsewhere.of_task(task, name), name=name, obj=self)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
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

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
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

    def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> list[Job[R]]:
        """Have each worker that lives now run this once, before what waits in its queues; a job for each.

        Each runs at most once: what fails, or what its worker leaves behind when it ends, has ended. A worker that does
        not know the task cancels it. No worker, no job: the list is empty.

        Raises:
            ArgumentError, PayloadTooLarge, StoreUnavailable, StoreFull: as :meth:`enqueue`.
            OptionsError: an option cannot be kept: a delay, an order, a request id; or more than 1,000 workers live.

        Cost: two round trips.
        """
        return self._bound.broadcast(*args, **kwargs)

    async def abroadcast(self, *args: P.args, **kwargs: P.kwargs) -> list[Job[R]]:
        """See :meth:`broadcast`."""
        return await self._bound.abroadcast(*args, **kwargs)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> UnsentJob[R]:
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
        return self.signature.pack_result(value, self.context.client.settings.max_result)

    def prepare(self) -> None:
        """Make what a first job would make for itself: in a process that is forked for each, every job is first."""
        self.plan(b"")
        self.signature.prepare()

    def plan(self, options: bytes) -> Plan:
        """How to run a job that was stored with these options.

        Raises:
            CorruptOptions: no enqueue wrote these bytes.
        """
        plan = self._plans.get(options)
        if plan is None:
            if len(self._plans) >= PLANS:
                self._plans.clear()
            plan = self._plans[options] = self._planned(options)
        return plan

    def _planned(self, data: bytes) -> Plan:
        try:
            own = _overrides.decode(data) if data else Overrides()
            numbers = {part: getattr(own, name) for name, (part, _) in RETRY_PARTS.items()}
            retry = replace(self.defaults.retries, **{part: n for part, n in numbers.items() if n is not None})
            strategy = check_strategy("strategy", own.strategy) if own.strategy else ""
        except (msgspec.MsgspecError, OptionsError, ValueError) as error:
            raise CorruptOptions(
                f"the stored options of a job of {self.name} cannot be read ({error}): another program wrote them"
            ) from None
        task, settings = self.defaults, self.context.client.settings
        timeout = _first(own.timeout, task.timeout, 0.0)
        hard = _first(own.hard_timeout, task.hard_timeout, 0.0) or (timeout + settings.kill_timeout if timeout else 0.0)
        return Plan(
            retry,
            timeout or None,
            hard or None,
            microseconds(_first(own.result_ttl, task.result_ttl, settings.result_ttl)),
            microseconds(_first(own.failure_ttl, task.failure_ttl, settings.failure_ttl)),
            strategy or self.defaults.strategy,
            self.signature.secrets,
        )

    def __repr__(self) -> str:
        return f"<Task {self.name}>"


class BoundTask(Generic[P, R]):
    """A task with the options of the next jobs: the verbs of :class:`Task`, each with the same guarantee."""

    __slots__ = ("_heir", "_options", "_requests", "_shared", "_signature", "context", "task")

    def __init__(self, context: AppContext, signature: Signature | Unchecked, options: Options) -> None:
        """Use ``task.options(...)`` or ``app.by_name(...)``."""
        self.task = signature.task
        self.context = context
        self._signature = signature
        self._options = options
        if options.unique:
            check_by(options.unique, signature)
        # Made at first use: annotations may name what the module defines further below.
        self._shared: Form | None = None
        if options.cost:
            known = context.tasks.get(self.task)
            check_cost(context.limits_of(known.limits if known else (), options.queue), options.cost)
        # The form with the headers of a job that makes jobs here, and those headers.
        self._heir: tuple[Mapping[str, str], Form] | None = None
        self._requests = (options.request_id,) if options.request_id else ()

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """See :meth:`Task.enqueue`."""
        client = self.context.client
        new = self._new(client, args, kwargs)
        return self._stored(new, submit(client, "enqueue", [new], self._requests))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """See :meth:`Task.enqueue`."""
        client = self.context.client
        new = self._new(client, args, kwargs)
        return self._stored(new, await asubmit(client, "enqueue", [new], self._requests))

    def enqueue_json(self, args: str | bytes = "[]", kwargs: str | bytes = "{}") -> Job[R]:
        """See :meth:`Task.enqueue_json`."""
        new = self._new_json(args, kwargs)
        return self._stored(new, submit(self.context.client, "enqueue", [new], self._requests))

    async def aenqueue_json(self, args: str | bytes = "[]", kwargs: str | bytes = "{}") -> Job[R]:
        """See :meth:`Task.enqueue_json`."""
        new = self._new_json(args, kwargs)
        return self._stored(new, await asubmit(self.context.client, "enqueue", [new], self._requests))

    def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> list[Job[R]]:
        """See :meth:`Task.broadcast`."""
        data, act = self._broadcasting(args, kwargs)
        with around(self.context.client, act):
            return self.context.client.drive(self._broadcast(data, act))

    async def abroadcast(self, *args: P.args, **kwargs: P.kwargs) -> list[Job[R]]:
        """See :meth:`Task.broadcast`."""
        data, act = self._broadcasting(args, kwargs)
        async with around(self.context.client, act):
            return await self.context.client.adrive(self._broadcast(data, act))

    def _broadcasting(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, Submission]:
        options = self._options
        for name in ("delay", "at", "ordered", "unique", "request_id"):
            if getattr(options, name):
                raise OptionsError(f"a broadcast goes to each worker that lives now: it takes no {name}=")
        data = self._signature.pack(args, kwargs, self.context.client.settings.max_payload)
        return data, of_rows("broadcast", [NewJob("", data, self.form())])

    def _broadcast(self, data: bytes, act: Submission) -> Steps[list[Job[R]]]:
        seen: overviews.Overview = yield overviews.overview(self.context.client.keys)
        rows = [(worker.owner, new_id()) for worker in seen.live]
        if len(rows) > MOST_WORKERS:
            raise OptionsError(f"{len(rows):,} workers live, and a broadcast goes to {MOST_WORKERS:,} at most")
        if not rows:
            return []
        stored: list[str] = yield produce.broadcast(self.context.client.keys, act.jobs[0].form(), data, rows)
        return [self.handle(id, fresh=True) for id in stored]

    def job(self, *args: P.args, **kwargs: P.kwargs) -> UnsentJob[R]:
        """See :meth:`Task.job`."""
        data = self._signature.pack(args, kwargs, self.context.client.settings.max_payload)
        self.check_key()
        return UnsentJob(self, data, self.form(), self._options.request_id, name=self._name(data))

    def options(self, /, **options: Unpack[CallOptions]) -> BoundTask[P, R]:
        """See :meth:`Task.options`; what is not given stays as it is here."""
        return BoundTask(self.context, self._signature, of_call(self._options, options))

    def _new(self, client: Client, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        data = self._signature.pack(args, kwargs, client.settings.max_payload)
        id, form = new_id(), self.form()
        if form.ordered or form.unique:
            return NewJob(self.fitting(id), data, form, self._name(data))
        return NewJob(id, data, form)

    def _new_json(self, args: str | bytes, kwargs: str | bytes) -> NewJob:
        data = self._signature.pack_json(args, kwargs, self.context.client.settings.max_payload)
        return NewJob(self.fitting(new_id()), data, self.form(), self._name(data))

    def _name(self, data: bytes) -> str:
        """The name of a unique job with these arguments; empty where it is not unique."""
        rule = self._options.unique
        return unique_name(rule, self._signature, data, self.context.types) if rule else ""

    def fitting(self, id: str) -> str:
        """An id that was drawn, as these options want it: that of an ordered or unique job says so.

        Raises:
            OptionsError: it is ordered, and nothing says by which key.
        """
        if self._options.ordered:
            self.check_key()
            id = ordered_id(id)
        return unique_id(id) if self._options.unique else id

    def check_key(self) -> None:
        """Refuse a job that is ordered, where nothing says by which key.

        Raises:
            OptionsError: it is so.
        """
        if self._options.ordered and not self._options.key:
            raise OptionsError(f"{self.task} is ordered by key, so each job needs one: {self.task}.options(key=...)")

    def draw(self) -> str:
        """An id for a job of these options, which no other process draws."""
        return self.fitting(new_id())

    def form(self, above: Mapping[str, str] | None = None) -> Form:
        """What the next jobs share.

        Args:
            above: the headers that they inherit; None: those of the job that this runs in.

        Raises:
            OptionsError: with those that they inherit they have too many headers, or too large ones.
        """
        if above is None:
            above = inherited()
        own = self._shared or self._own_form()
        if not above:
            return own
        heir = self._heir
        if heir is None or heir[0] is not above:
            form = msgspec.structs.replace(own, headers=packed(added(self._options.headers, above)))
            heir = self._heir = (above, form)
        return heir[1]

    def _own_form(self) -> Form:
        options, secrets = self._options, self._signature.secrets
        own = msgspec.structs.replace(options, secrets=secrets) if secrets else options
        self._shared = form_of(self.task, own)
        return self._shared

    def handle(self, id: str, *, fresh: bool = False) -> Job[R]:
        """A handle on a job of this task. Cost: none."""
        return Job(self.context.client, id, self.task, self._signature, self._options.failure_ttl, fresh=fresh)

    def _stored(self, new: NewJob, accepted: Accepted) -> Job[R]:
        id = accepted.duplicates.get(new.id, new.id)
        return self.handle(id, fresh=id == new.id)

    def __repr__(self) -> str:
        return f"<Task {self.task} with options>"


# Drawn ahead, since asking the kernel for each id is a third of what an id costs. A child draws its own.
_drawn: deque[str] = deque()
os.register_at_fork(after_in_child=_drawn.clear)


def new_id() -> str:
    """An id that no other process draws. Cost: none."""
    try:
        tail = _drawn.pop()
    except IndexError:
        # Not the random module: a program that seeds it, as simulations do, would make the same ids twice.
        dice = os.urandom(7 * 64)
        tails = [make_tail(int.from_bytes(dice[n : n + 7]) >> 1) for n in range(0, 7 * 64, 7)]
        tail = tails.pop()
        _drawn.extend(tails)
    return id_at(time.time_ns() // 1_000_000, tail)


# The budget that the store assumes when a record names none (reclaim.lua, crash.lua).
DEFAULT_CRASHES = 3


def budgets(tasks: Mapping[str, Task[..., Any, Any]], default: int) -> list[str | int]:
    """Fields by which a worker says of which crash budget its tasks are: counts for jobs that were enqueued by name."""
    found: list[str | int] = [] if default == DEFAULT_CRASHES else ["budget:", default]
    for name, task in tasks.items():
        if task.defaults.max_crashes:
            found += (f"budget:{name}", task.defaults.max_crashes)
    return found


def _first(own: float | None, task: float | None, default: float) -> float:
    if own is not None:
        return own
    return default if task is None else task
