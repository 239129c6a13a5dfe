"""Submissions: the one way from each verb that stores work to the store."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    contextmanager,
    nullcontext,
)
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar, Unpack, cast, overload

import msgspec

from headrace.errors import OptionsError
from headrace.model import codec
from headrace.model.form import Form, NewJob, asked, changed
from headrace.model.headers import MOST_BYTES, MOST_HEADERS, packed, shown
from headrace.model.headers import check as check_headers
from headrace.model.options import JobOptions
from headrace.model.workflow import NewNode
from headrace.protocol.durability import Confirmer, Wishes
from headrace.protocol.produce import Accepted
from headrace.running_job import RunningJob, inherited_headers
from headrace.store.client import Client, Steps

if TYPE_CHECKING:
    from headrace.model.sealing import Seal
    from headrace.tasks.deferral import Transaction
    from headrace.tasks.job_handle import Job

Manager: TypeAlias = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]
Middleware: TypeAlias = Callable[..., Manager]


def check(function: Any) -> None:
    """Refuse what is not a middleware. Raises OptionsError: not callable, or a bare generator or coroutine function."""
    bare = (inspect.isgeneratorfunction, inspect.isasyncgenfunction, inspect.iscoroutinefunction)
    if callable(function) and not any(is_bare(function) for is_bare in bare):
        return
    raise OptionsError(
        f"middleware must be a callable that returns a context manager, not {function!r}: decorate a generator "
        f"function with contextlib.contextmanager, an asynchronous one with contextlib.asynccontextmanager"
    )


def ordinary(manager: object, inside: str = "", advice: str = "") -> AbstractContextManager[Any]:
    """A middleware's context manager for ordinary code; ``inside``, ``advice``: for the error. Raises OptionsError."""
    if hasattr(type(manager), "__enter__"):
        return cast("AbstractContextManager[Any]", manager)
    if not is_asynchronous(manager):
        raise OptionsError(f"a middleware must return a context manager, not {manager!r:.80}")
    raise OptionsError(
        f"a middleware gave an asynchronous context manager, and {inside} {advice}, or give it __enter__ and "
        f"__exit__, too"
    )


async def aenter(stack: AsyncExitStack, manager: Any) -> None:
    """Enter a middleware in a coroutine; the asynchronous way comes first. Raises OptionsError: it is none."""
    if is_asynchronous(manager):
        await stack.enter_async_context(manager)
    else:
        stack.enter_context(ordinary(manager))


def is_asynchronous(manager: object) -> bool:
    return hasattr(type(manager), "__aenter__")


Verb: TypeAlias = Literal["enqueue", "enqueue_many", "enqueue_packed", "broadcast", "create", "start", "grow"]

_args = msgspec.msgpack.Decoder(tuple[tuple[Any, ...], dict[str, Any]], ext_hook=lambda code, data: None)  # noqa: ARG005
_JOBS = frozenset({"", "undo", "callback"})
_NOT_OF_JOBS = frozenset(
    ("request_id", "headers", "ordered", "unique", "after", "after_failure", "durability", "replicas", "after_commit")
)
_NOT_OF_NODES = _NOT_OF_JOBS | {"at", "expires", "result_ttl", "failure_ttl"}
_NOT_OF_BROADCASTS = _NOT_OF_JOBS | {"at", "delay", "queue", "priority", "key"}
_ORDER = frozenset({"key"})
_ADVICE = {
    "headers": "write job.headers[...] = ...",
    "key": "it says in which order the job runs",
    "ordered": "the id of the job says it already",
    "unique": "the id of the job says it already",
    "request_id": "the caller gives it",
}
_AWAIT = "was not awaited: await its asynchronous pair"


class SubmittedJob:
    """A job that is about to be stored; a middleware may change its headers and options, not its arguments.

    Attributes:
        id: of the job; empty where the store has yet to give one: ``broadcast`` and ``grow``.
        task: name of its task.
    """

    __slots__ = ("_args", "_form", "_headers", "_refused", "id", "task")

    def __init__(self, id: str, args: bytes, form: Form, refused: frozenset[str] = frozenset()) -> None:
        """Made by the verb that stores it; ``refused``: options that this verb does not take."""
        self.id = id
        self.task = form.task
        self._args = args
        self._form = form
        # Once they were asked for, and so may have been changed.
        self._headers: dict[str, str] | None = None
        self._refused = refused | _ORDER if form.ordered else refused

    @property
    def args(self) -> tuple[Any, ...]:
        """Its arguments by position, as plain values; None stands for the output of a node that is not known yet."""
        return self._arguments()[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        """Its arguments by name; those that have a position are in ``args``."""
        return self._arguments()[1]

    @property
    def queue(self) -> str:
        """The queue that it is for."""
        return str(self._form.queue)

    @property
    def size(self) -> int:
        """Bytes of its packed arguments."""
        return len(self._args)

    @property
    def delayed(self) -> bool:
        """Whether it is not to start at once."""
        return bool(self._form.delay or self._form.at)

    @property
    def headers(self) -> dict[str, str]:
        """Its headers, inherited ones included. What is changed here is stored: ``job.headers["tenant"] = "a"``."""
        if self._headers is None:
            packed_headers = self._form.headers
            self._headers = dict(shown(packed_headers)) if packed_headers else {}
        return self._headers

    def carry(self, headers: dict[str, str]) -> None:
        """Replace its headers by others, which are texts; it keeps those that it has where there is no room."""
        data = packed(headers)
        # Packed, they take a few bytes more than the limit counts.
        if len(headers) <= MOST_HEADERS and len(data) <= MOST_BYTES:
            self._headers = None
            self._form = msgspec.structs.replace(self._form, headers=data)

    @property
    def options(self) -> dict[str, Any]:
        """What it asks for, by the names of :class:`headrace.model.options.JobOptions`; durations are seconds."""
        return asked(self._form)

    def change(self, **options: Unpack[JobOptions]) -> None:
        """Ask for something else: ``job.change(queue="low", priority=-1)``. Raises OptionsError: an option is out of
        range, contradicts another, or cannot be changed any more.
        """
        for name in options:
            if name in self._refused:
                raise OptionsError(
                    f"{name} cannot be changed here: {_ADVICE.get(name, 'this verb takes it from its caller')}"
                )
        self._form = changed(self._form, options)

    def form(self) -> Form:
        """What is stored besides id and arguments, with changes. Raises OptionsError: its headers cannot be sent."""
        if self._headers is not None:
            check_headers("headers", self._headers)
            data = packed(self._headers)
            if data != self._form.headers:
                self._form = msgspec.structs.replace(self._form, headers=data)
        return self._form

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        try:
            if codec.is_json(self._args):
                args, kwargs = codec.arguments(self._args)
                return tuple(args), kwargs
            return _args.decode(self._args)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return (codec.readable(self._args),), {}

    def __repr__(self) -> str:
        return f"<SubmittedJob {self.id} {self.task}>"


class Submission:
    """One act that stores work: a call of a verb, or a chunk of one that streams.

    Attributes:
        verb: ``enqueue``, ``enqueue_many``, ``enqueue_packed``, ``broadcast``; ``create`` and ``start`` of a workflow;
            ``grow``: a running node adds nodes, by ``flow.map`` or by itself. The asynchronous pairs have the same.
        jobs: what is stored. A broadcast shows one job for all workers; a start shows none, since it stores none.
        workflow_id: of the workflow that they are nodes of; empty for other jobs.
        definition: the name of the workflow that is created; empty for other verbs.
    """

    __slots__ = ("definition", "jobs", "verb", "workflow_id")

    def __init__(self, verb: Verb, jobs: Sequence[SubmittedJob], workflow_id: str = "", definition: str = "") -> None:
        self.verb: Verb = verb
        self.jobs = jobs
        self.workflow_id = workflow_id
        self.definition = definition

    def rows(self, rows: Sequence[NewJob]) -> list[NewJob]:
        return [NewJob(row.id, row.args, job.form(), row.name) for row, job in zip(rows, self.jobs, strict=True)]

    def nodes(self, nodes: Sequence[NewNode]) -> tuple[NewNode, ...]:
        jobs = iter(self.jobs)
        return tuple(
            msgspec.structs.replace(node, form=next(jobs).form()) if node.role in _JOBS else node for node in nodes
        )

    def __repr__(self) -> str:
        return f"<Submission by {self.verb} of {len(self.jobs)} jobs>"


class around:  # noqa: N801 - used as a function
    """The enqueue middleware of an application around an act. The act's own error is raised, whatever swallows it.

    A class, since a generator that is a context manager costs each send a microsecond.
    """

    __slots__ = ("_act", "_client", "_stack")

    def __init__(self, client: Client, act: Submission) -> None:
        self._client = client
        self._act = act
        self._stack: Any = None

    def __enter__(self) -> None:
        act, middlewares = self._act, self._client.enqueue_middlewares
        if len(middlewares) == 1:
            # Such as traces: without a stack a send takes two microseconds less.
            self._stack = ordinary(middlewares[0](act), act.verb, _AWAIT)
            self._stack.__enter__()
            return
        stack = ExitStack()
        try:
            for middleware in middlewares:
                stack.enter_context(ordinary(middleware(act), act.verb, _AWAIT))
        except BaseException:
            stack.__exit__(*sys.exc_info())
            raise
        self._stack = stack

    def __exit__(self, *failed: Any) -> None:
        self._stack.__exit__(*failed)

    async def __aenter__(self) -> None:
        act, middlewares = self._act, self._client.enqueue_middlewares
        if len(middlewares) == 1:
            self._stack = middlewares[0](act)
            if is_asynchronous(self._stack):
                await self._stack.__aenter__()
            else:
                ordinary(self._stack).__enter__()
            return
        stack = AsyncExitStack()
        try:
            for middleware in middlewares:
                await aenter(stack, middleware(act))
        except BaseException:
            await stack.__aexit__(*sys.exc_info())
            raise
        self._stack = stack

    async def __aexit__(self, *failed: Any) -> None:
        if is_asynchronous(self._stack):
            await self._stack.__aexit__(*failed)
        else:
            self._stack.__exit__(*failed)


# The answer for jobs that are stored when a transaction is committed.
WAITING = Accepted("waiting")


def submit(
    client: Client,
    verb: Verb,
    rows: Sequence[NewJob],
    requests: Sequence[str] = (),
    confirmer: Confirmer | None = None,
    wish: object = None,
) -> Accepted:
    """Store new jobs, at once or after a commit (``wish``: ``after_commit``). Cost: one round trip."""
    if client.deferral is None and wish is None and not client.enqueue_middlewares:
        return client.submit(rows, requests, confirmer)
    act = of_rows(verb, rows)
    with around(client, act):
        rows = act.rows(rows)
        return _waiting(client, rows, requests, confirmer, wish) or client.submit(rows, requests, confirmer)


async def asubmit(
    client: Client,
    verb: Verb,
    rows: Sequence[NewJob],
    requests: Sequence[str] = (),
    confirmer: Confirmer | None = None,
    wish: object = None,
) -> Accepted:
    if client.deferral is None and wish is None and not client.enqueue_middlewares:
        return await client.asubmit(rows, requests, confirmer)
    act = of_rows(verb, rows)
    async with around(client, act):
        rows = act.rows(rows)
        return _waiting(client, rows, requests, confirmer, wish) or await client.asubmit(rows, requests, confirmer)


def _waiting(
    client: Client, rows: list[NewJob], requests: Sequence[str], confirmer: Confirmer | None, wish: object
) -> Accepted | None:
    transaction = transaction_of(client, wish)
    if transaction is None:
        return None
    from headrace.tasks.deferral import PendingJobs

    asked = confirmer.asked if confirmer is not None else None
    transaction.add(PendingJobs(rows, tuple(requests), None if asked is None else frozenset(asked)))
    return WAITING


def postponed(
    client: Client, wish: object, about: str, steps: Steps[Any], done: Callable[[Any], object] | None = None
) -> bool:
    """Whether an act waits for the commit of a transaction; its arguments are those of a ``PendingAct``."""
    transaction = transaction_of(client, wish)
    if transaction is None:
        return False
    from headrace.tasks.deferral import PendingAct

    transaction.add(PendingAct(about, steps, done))
    return True


def transaction_of(client: Client, wish: object) -> Transaction | None:
    """The open transaction that work waits for; None: it is sent at once. Raises OptionsError: there is no such tie."""
    if wish is False or (wish is None and client.deferral is None):
        return None
    if client.deferral is None:
        raise OptionsError(
            f"after_commit={wish!r:.80} needs a tie to a database: docs/django.md and docs/sqlalchemy.md say how"
        )
    found: Transaction | None = client.deferral.transaction(wish)
    return found


def of_rows(verb: Verb, rows: Sequence[NewJob]) -> Submission:
    refused = _NOT_OF_BROADCASTS if verb == "broadcast" else _NOT_OF_JOBS
    return Submission(verb, [SubmittedJob(row.id, row.args, row.form, refused) for row in rows])


def submission_of_nodes(
    verb: Verb, nodes: Sequence[NewNode], workflow_id: str, id_of: Callable[[int], str], definition: str = ""
) -> Submission:
    numbered = enumerate(nodes, 1)
    jobs = [SubmittedJob(id_of(n), one.args, one.form, _NOT_OF_NODES) for n, one in numbered if one.role in _JOBS]
    return Submission(verb, jobs, workflow_id, definition)


R = TypeVar("R")


class JobSource(Protocol[R]):
    """A task and the options of a job that is not stored yet: a ``BoundTask``."""

    @property
    def task(self) -> str: ...
    @property
    def seal(self) -> Seal | None: ...
    @property
    def asked(self) -> Wishes: ...
    @property
    def wish(self) -> object: ...
    def draw(self, name: str, /) -> str: ...
    def placed(self, id: str, name: str, /) -> str: ...
    def fitting(self, id: str, /) -> str: ...
    def handle(self, id: str, /, *, fresh: bool = False) -> Job[R]: ...


# A Struct, since a million of them pass: made in a third of the time, and nothing for the garbage collector.
class UnsentJob(msgspec.Struct, Generic[R], eq=False, gc=False):
    """A job that is not stored yet, made by ``task.job(...)``: ``app.enqueue_many`` stores it, once.

    Attributes:
        bound: the task and its options.
        args: packed.
        form: everything else that is stored of it.
        request_id: within the setting ``request_id_ttl`` it makes one job; empty: the job has none.
        drawn: its id, if it was asked for.
        shared: another sender may store it, or an earlier attempt may have: it is stored only if it is not there yet.
        stored: id of the job that it is stored as; empty: it is not stored, as far as is known here.
        name: of a unique job.
    """

    bound: JobSource[R]
    args: bytes
    form: Form
    request_id: str = ""
    drawn: str = ""
    shared: bool = False
    stored: str = ""
    name: str = ""

    @property
    def id(self) -> str:
        """Id of the job, from the moment that it is made. Cost: none."""
        if not self.drawn:
            self.drawn = self.bound.draw(self.name)
        return self.drawn

    @property
    def handle(self) -> Job[R]:
        """A handle on the job: on the one that has its name or request id, where the store said so. Cost: none."""
        return self.bound.handle(self.stored or self.id, fresh=self.stored == self.id)

    def pack(self) -> bytes:
        """The job as an envelope: documented bytes for a file, a table or another program; see docs/envelope.md.
        ``app.enqueue_packed`` stores it, once, however many senders have these bytes. Its delay and expiry count from
        that moment. Raises OptionsError: an option has a value that no envelope can carry. Cost: none.
        """
        # Loaded at first use: a program without envelopes must not pay for them.
        from headrace.tasks.envelope import packed

        self.shared = True
        return packed(self.id, self.args, self.form, self.request_id, self.name, self.bound.seal)

    def take(self, drawn: str) -> NewJob:
        """The row to store. ``drawn``: an id to take if it has none yet. Raises OptionsError: it is stored already."""
        if self.stored:
            raise OptionsError(f"this job was stored already, as {self.stored}: make another with task.job(...)")
        if not self.drawn:
            self.drawn = self.bound.fitting(drawn)
        self.stored = self.drawn
        return NewJob(self.drawn, self.args, self.form, self.name)

    def untaken(self) -> None:
        """The attempt to store it failed: it may be stored or not."""
        self.stored, self.shared = "", True

    @property
    def wish(self) -> str:
        """What the store looks for before it stores the job: its request id, or its own id, or nothing."""
        return self.request_id or (self.drawn if self.shared else "")

    def __repr__(self) -> str:
        return f"<UnsentJob of {self.bound.task} {self.drawn or 'without an id yet'}>"


Get: TypeAlias = Callable[[], str | None]
Apply: TypeAlias = Callable[[str], Manager]


class Propagation:
    """``app.propagate``."""

    def __init__(self, around_acts: list[Middleware], around_starts: list[Middleware]) -> None:
        self._around_acts = around_acts
        self._around_starts = around_starts

    @overload
    def __call__(self, name: str, value: ContextVar[str] | ContextVar[str | None], /) -> None: ...
    @overload
    def __call__(self, name: str, get: Get, apply: Apply, /) -> None: ...
    def __call__(self, name: str, get: object, apply: Apply | None = None, /) -> None:
        """Have a value of the context travel with jobs, as a header: ``app.propagate("tenant", tenant)``.

        What is set where a job is stored is set in each of its starts, around middleware that is registered later, and
        is as before when the start has ended. A header that the call, or an earlier middleware, gives itself stays.
        Nothing travels where the value is not set, or None. Raises OptionsError: the name cannot be that of a header,
        or ``get`` is neither. Cost: one more step around each act that stores work and around each start.

        Args:
            name: of the header.
            get: the context variable, of texts; or a function that gives the text where work is stored.
            apply: with a function: called with the text in a start, returns a context manager to be in.
        """
        check_headers("headers", {name: ""})
        if isinstance(get, ContextVar):
            found = cast("ContextVar[str | None]", get)
            self._register(name, lambda: found.get(None), lambda text: _set(found, text))
        elif callable(get) and callable(apply):
            self._register(name, cast("Get", get), apply)
        else:
            raise OptionsError(
                f"app.propagate({name!r}, ...) takes a ContextVar, or a function that gives a text and one that makes "
                f"a context manager of it, not {get!r:.80}"
            )

    def _register(self, name: str, get: Get, apply: Apply) -> None:
        @contextmanager
        def send(act: Submission) -> Generator[None]:
            if act.jobs:
                text, above = get(), inherited_headers().get(name)
                for job in act.jobs:
                    # What the job that runs here was given, unless its code has changed it since.
                    if job.headers.get(name) == above and text != above:
                        if text is None:
                            del job.headers[name]
                        else:
                            job.headers[name] = text
            yield

        def use(job: RunningJob) -> Manager:
            text = job.headers.get(name)
            return nullcontext() if text is None else apply(text)

        self._around_acts.append(send)
        self._around_starts.append(use)


@contextmanager
def _set(variable: ContextVar[str | None], text: str) -> Generator[None]:
    token = variable.set(text)
    try:
        yield
    finally:
        variable.reset(token)
