"""The job that runs here: what user code sees of it. What the job says goes to the ``emit`` that the runner gave.

:class:`Stopping` is not ``threading.Event``: in a process runner it is set by a signal handler, and the code that this
interrupts may be during a wait for the same event, whose lock the handler would then wait for.
"""

from __future__ import annotations

import _thread
import contextlib
from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

import msgspec

from headrace.clock import monotonic
from headrace.errors import ArgumentError, NoCurrentJob, OptionsError, PayloadTooLarge, Snooze
from headrace.model.headers import SCHEDULE, unpacked
from headrace.model.hidden_values import map_texts
from headrace.model.ids import flow_of, is_node, ticked_at
from headrace.model.job import Claim
from headrace.model.limit_rules import check_units, name_of_any
from headrace.model.retry import NO_RETRY, Retry, runs_again
from headrace.model.workflow import Payload, correlation_of, log_fields, parse_facts
from headrace.protocol.consume import Note
from headrace.running_job import running_job
from headrace.settings import Duration, patience, seconds

if TYPE_CHECKING:
    import asyncio

    from headrace.workflows.scope import Flow

LINE_CAP = 4_000
# Seconds after which a waiter looks for itself: an exception that is raised in another one may lose its wake-up.
_LOOK = 1.0
_NO_KWARGS: Mapping[str, Any] = MappingProxyType({})
StopReason = Literal["", "shutdown", "interrupt", "cancel", "soft"]


class Stopping:
    """Set when a stop of the running job begins: its worker shuts down, its soft limit is over, or it is cancelled.

    ``wait`` is for functions, ``await`` for coroutines. Threads that a job starts may use it, too.
    """

    __slots__ = ("_begun", "_futures", "_lock")

    def __init__(self, begun: Callable[[], bool]) -> None:
        self._begun = begun
        # Held until it is set; then each waiter takes it and gives it to the next one.
        self._lock = _thread.allocate_lock()
        self._lock.acquire()
        self._futures: list[asyncio.Future[None]] = []
        if begun():
            # A signal came before there was anything to wake.
            self.wake()

    def is_set(self) -> bool:
        """Whether a stop has begun. Cost: none."""
        return self._begun()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until a stop begins; False when none has begun within ``timeout`` seconds. Cost: none."""
        limit = patience(timeout)
        end = None if limit is None else monotonic() + limit
        while not self._begun():
            left = _LOOK if end is None else min(_LOOK, end - monotonic())
            if left <= 0:
                return False
            if self._lock.acquire(timeout=left):
                self._release()
        return True

    def __await__(self) -> Generator[Any, None, None]:
        """Wait in a coroutine until a stop begins; with a limit: ``asyncio.wait_for(job.stopping, 5)``."""
        return self._awaited().__await__()

    async def _awaited(self) -> None:
        import asyncio

        future = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        try:
            # It may have been set before the future was there to be told.
            if not self._begun():
                await future
        finally:
            self._futures.remove(future)

    def wake(self) -> None:
        """Wake who waits, since a stop has begun; called by the runner, also from a signal handler."""
        self._release()
        for future in list(self._futures):
            # Its loop may have ended.
            with contextlib.suppress(RuntimeError):
                future.get_loop().call_soon_threadsafe(_resolve, future)

    def _release(self) -> None:
        # No thread holds it any more where it was set before.
        with contextlib.suppress(RuntimeError):
            self._lock.release()

    def __repr__(self) -> str:
        return f"<Stopping {'set' if self._begun() else 'not set'}>"


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class CurrentJob:
    """The job that runs in this thread or coroutine.

    Attributes:
        stopped_by: what stops this start; written by the runner: empty, ``shutdown`` (its worker stops), ``interrupt``
            (``JobInterrupted`` was raised), ``cancel`` or ``soft`` (its soft time limit is over).
        args: what its function is called with, by position.
        kwargs: the same by name.
        hide: ``job.hide(text)`` is the text without the values of arguments that are annotated ``Secret``.
        swallowed: the exception that a middleware swallowed; written by the runner.
        added: what it adds to its workflow; None until it asked for ``workflow``.
        passed_on: the headers that jobs inherit which it makes; None until it makes one.
        state: what the lifespans of its runner yielded; None if they yielded nothing. See :meth:`Headrace.lifespan`.
    """

    __slots__ = (
        "_claim", "_emit", "_flow", "_headers", "_limit_of", "_retry", "_stopping", "added", "args", "hide", "kwargs",
        "passed_on", "state", "stopped_by", "swallowed",
    )  # fmt: skip

    def __init__(
        self,
        claim: Claim,
        emit: Callable[[Note], None],
        flow: Callable[[Claim], Flow] | None = None,
        state: Any = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] = _NO_KWARGS,
        limit_of: Callable[[Claim, object], str] = name_of_any,
        retry: Retry = NO_RETRY,
        hide: Callable[[str], str] = str,
    ) -> None:
        """Made by runners; ``flow`` makes what collects the nodes that this one adds to its workflow."""
        # Few lines, since every job passes here: what most jobs never ask for is read off the claim when they do.
        self._claim = claim
        self._emit = emit
        self._flow = flow
        self._limit_of = limit_of
        self._headers: Mapping[str, str] | None = None
        self.passed_on: Mapping[str, str] | None = None
        self._retry = retry
        self.hide = hide
        self.state = state
        self.args = args
        self.kwargs = kwargs
        self.swallowed: BaseException | None = None
        self.stopped_by: StopReason = ""
        self._stopping: Stopping | None = None
        self.added: Flow | None = None

    @property
    def id(self) -> str:
        """Its id."""
        return self._claim.id

    @property
    def task(self) -> str:
        """Name of its task."""
        return self._claim.task

    @property
    def queue(self) -> str:
        """Where it was enqueued."""
        return self._claim.queue

    @property
    def key(self) -> str:
        """The key that it was enqueued with, or empty."""
        return self._claim.key

    @property
    def headers(self) -> Mapping[str, str]:
        """Texts by name that travel with it; jobs and workflows that it makes inherit them."""
        # The same ones each time: what jobs are enqueued with here is packed once for them.
        if self._headers is None:
            self._headers = unpacked(self._claim.headers)
        return self._headers

    @property
    def correlation(self) -> str:
        """What all work has in common that one piece of work led to: log lines have it, jobs made here inherit it."""
        return correlation_of(self.id, self.headers)

    @property
    def log_fields(self) -> dict[str, str | int]:
        """What log lines say of it, by name, for loggers of your own; docs/observability.md lists them."""
        return log_fields(self._claim, self.headers)

    @property
    def tick(self) -> datetime | None:
        """The nominal time of the schedule's tick that made this job, in UTC; None: no schedule made it."""
        return ticked_at(self.id, self.headers.get(SCHEDULE, ""))

    @property
    def attempt(self) -> int:
        """Which start this is, from 1."""
        return self._claim.attempt

    @property
    def failures(self) -> int:
        """How many earlier starts raised."""
        return self._claim.failures

    @property
    def retries_left(self) -> int:
        """How many more starts there may be after errors, if this one raises, too."""
        return max(0, self._retry.max - self.failures)

    def will_retry(self, error: BaseException) -> bool:
        """Whether the job runs again if this leaves its code; True for a snooze and for a shutdown's interruption."""
        return runs_again(self._retry, self.failures, error, self.stopped_by)

    @property
    def snoozes(self) -> int:
        """How often it was snoozed."""
        return self._claim.snoozes

    @property
    def token(self) -> int:
        """The fencing token of this start; hand it to outside systems that must refuse an older start."""
        return self._claim.token

    @property
    def number(self) -> int:
        """The number of this start in its worker."""
        return self._claim.number

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled while it ran; true shortly before ``CancelRequested`` is raised in it."""
        return self.stopped_by == "cancel"

    @property
    def stopping(self) -> Stopping:
        """An event that is set when a stop begins: a shutdown of the worker, the soft limit, or a cancellation.

        ``job.stopping.wait(5)`` in functions, ``await job.stopping`` in coroutines, ``is_set()`` anywhere. After a
        shutdown began the job may finish within ``shutdown_timeout``; when that is nearly over, ``JobInterrupted`` is
        raised in it. A job that ends by raising ``JobInterrupted`` goes back to its queue at once, and uses up no
        retry.
        """
        if self._stopping is None:
            self._stopping = Stopping(lambda: bool(self.stopped_by))
        return self._stopping

    def begin_stop(self, reason: StopReason) -> None:
        """A stop begins; called by the runner, also from a signal handler."""
        if reason != "shutdown" or not self.stopped_by:
            self.stopped_by = reason
        if self._stopping is not None:
            self._stopping.wake()

    @property
    def workflow_id(self) -> str:
        """Id of the workflow that this job is a node of; empty for any other job."""
        return flow_of(self.id) if is_node(self.id) else ""

    @property
    def node(self) -> str:
        """Name of the node that this job is in its workflow; empty for any other job."""
        return parse_facts(self._claim.facts).name if is_node(self.id) else ""

    @property
    def payloads(self) -> list[Payload]:
        """What the direct parents of this node returned, in edge order; empty for a plain job. A node that is passed as
        an argument is the first way to its output; this is for those in ``after=``. Raises ``ResultMismatch`` where
        an output cannot be read, or is nested too deeply.
        """
        # Values that several nodes take, and that are stored once for all of them, are parents without a name.
        return [Payload(p.id, p.name, p.task, p.state, p.value) for p in self._claim.inputs if p.name]

    @property
    def workflow(self) -> Flow:
        """Adds nodes to the workflow that this job is a node of: ``current_job().workflow.run(task, ...)``. They are
        stored when this job succeeds, and run then; what was to follow it waits for them too. If it fails, or starts
        again, what it had added is forgotten. Raises NoCurrentJob: it is not a node of a workflow.
        """
        if self.added is None:
            if self._flow is None:
                text = "is not a node of a workflow: enqueue a job, or create a workflow"
                raise NoCurrentJob(f"job {self.id} of {self.task} {text}")
            self.added = self._flow(self._claim)
        return self.added

    def progress(self, share: float, text: str = "", data: object = None) -> None:
        """Tell how far the job is, from 0 to 1, a few words for people (4,000 characters) and data for programs.

        The store learns it within a quarter of a second, and those who read ``job.events()`` with it. The newest word
        counts, its data included. ``data``: anything that JSON can hold, at most 4,000 bytes of it; without ``Secret``
        arguments. Raises OptionsError: ``share`` is out of range. Raises ArgumentError, PayloadTooLarge: ``data`` is
        not such a value. Cost: no round trip of the job.
        """
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionsError(f"progress is a share from 0 to 1, not {share!r}: divide the done by the total")
        text = self.hide(str(text))[:LINE_CAP]
        self._emit(Note(self.id, self.token, progress=float(share), text=text, data=self._packed(data)))

    def _packed(self, data: object) -> str:
        if data is None:
            return ""
        try:
            found = msgspec.json.encode(map_texts(msgspec.to_builtins(data), self.hide)).decode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ArgumentError(f"the data of progress must be what JSON can hold: {error}") from None
        if len(found.encode()) > LINE_CAP:
            raise PayloadTooLarge(
                f"the data of progress has more than {LINE_CAP:,} bytes of JSON: store it elsewhere, and say where"
            )
        return found

    @property
    def cost(self) -> int:
        """Of how many starts it uses up the rates of its limits."""
        return self._claim.cost

    def spend(self, limit: object, units: int) -> None:
        """Say that this start costs so much more than ``cost``: ``job.spend("tokens", reply.tokens - job.cost)``. Below
        0: less. The server learns it within half a second. Cost: none. Raises NotFound, OptionsError: no limit of the
        job has this name; ``units`` is not a whole number, or too large.
        """
        name = self._limit_of(self._claim, limit)
        if check_units(units):
            self._emit(Note(self.id, self.token, spent=((name, units),)))

    def log(self, text: str) -> None:
        """Add lines to the job's log, each cut at 4,000 characters; ``job.logs()`` reads the last 1,000. Cost: none."""
        lines = self.hide(str(text)).splitlines()
        self._emit(Note(self.id, self.token, lines=tuple(x[:LINE_CAP] for x in lines) or ("",)))

    def snooze(self, delay: Duration) -> NoReturn:
        """End this start by ``Snooze``, which passes ``except Exception``: the job runs again after ``delay`` seconds.
        No retry is used up.
        """
        raise Snooze(seconds(delay, "the delay of a snooze"))

    def __repr__(self) -> str:
        return f"<CurrentJob {self.id} {self.task} attempt {self.attempt}>"


def current_job() -> CurrentJob:
    """The job whose code calls this. Raises NoCurrentJob: no job runs here, as where a task is called in place."""
    # Runners make no other.
    return cast(CurrentJob, running_job())
