"""A handle on one workflow, and waits for many jobs and workflows at once.

Owns no connection and no copy of the workflow. Each verb has an asynchronous pair; what a reply means is decided once.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar, get_args

from headrace.admin.jobs import Jobs
from headrace.clock import monotonic
from headrace.errors import ArgumentError, OptionsError, WaitTimeout
from headrace.model import elsewhere
from headrace.model.job import State
from headrace.model.job_record import Page
from headrace.model.workflow import FOR_EVER, NodeRecord, WorkflowRecord, WorkflowState
from headrace.protocol import graph, produce
from headrace.protocol.produce import Look, end_of
from headrace.protocol.script import Call
from headrace.running_job import check_wait
from headrace.settings import Duration, microseconds, patience, seconds
from headrace.store.client import Client, Steps, then, twin, verb
from headrace.store.waiting import AsyncInbox, Inbox, aask_all, ask_all, await_end, wait_end
from headrace.tasks.job_handle import Job
from headrace.tasks.submission import Submission, around, postponed
from headrace.tasks.task import Task
from headrace.workflows import verbs
from headrace.workflows.verbs import OnPiece, Verbs, found

Tasks = Mapping[str, Task[..., Any, Any]]


class WorkflowRun:
    """One workflow in the store, made by ``workflow.create(...)`` or found by ``app.workflows.get(id)``.

    Attributes:
        id: 21 characters that sort by the time of the creation.
        definition: name of its definition.
        created: False when ``create`` found a live workflow of the same key, and this is that one.
        wish: the option ``after_commit`` of its definition; None: as the application says.
        on_piece: called after each piece of a long operation with the number of pieces left in all; for progress bars.
    """

    __slots__ = ("_client", "_jobs", "_verbs", "created", "definition", "id", "on_piece", "wish")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(elsewhere.of_run(name), name=name, obj=self)

    def __init__(
        self, client: Client, id: str, definition: str, *, created: bool = True, tasks: Tasks | None = None
    ) -> None:
        self.id = id
        self.definition = definition
        self.created = created
        self.wish: object = None
        self.on_piece: OnPiece | None = None
        self._client = client
        self._verbs = Verbs(client, id, definition)
        self._jobs = Jobs(client, tasks or {})

    @property
    def state(self) -> WorkflowState:
        """Where the workflow is now. Raises WorkflowNotFound: it is not stored any more. Cost: one round trip."""
        return self._verbs.known(self._client.run(self._verbs.watch()))

    async def astate(self) -> WorkflowState:
        """See :attr:`state`."""
        return self._verbs.known(await self._client.arun(self._verbs.watch()))

    def refresh(self) -> WorkflowRecord:
        """Everything that is stored of the workflow itself: state, times, counts, arguments, first failed node. Raises
        WorkflowNotFound: it is not stored any more. Cost: one round trip, whatever the number of nodes.
        """
        return found(self.id, self._client.run(self._verbs.read())).read_with(self._jobs.reader)

    async def arefresh(self) -> WorkflowRecord:
        """See :meth:`refresh`."""
        return found(self.id, await self._client.aread(self._verbs.read())).read_with(self._jobs.reader)

    @property
    def progress(self) -> float:
        """Share of the nodes that have ended, from 0 to 1. Cost: one round trip."""
        return self.refresh().progress

    async def aprogress(self) -> float:
        """See :attr:`progress`."""
        return (await self.arefresh()).progress

    @property
    def counts(self) -> dict[str, int]:
        """Nodes by final state: succeeded, failed, cancelled, quarantined, skipped. Cost: one round trip."""
        return self.refresh().counts

    async def acounts(self) -> dict[str, int]:
        """See :attr:`counts`."""
        return (await self.arefresh()).counts

    def start(self, *names: str) -> WorkflowState:
        """Let the workflow run: all nodes without parents line up; one that was stopped goes on.

        Starting one that runs already changes nothing. In a transaction that it waits for, it returns ``pending``.

        Args:
            names: start these nodes instead, now, whatever they wait for; what follows them runs as ever. A task's name
                does where it has one node.

        Raises:
            WorkflowNotFound: it is not stored any more.
            StateError: it has ended.
            NotFound: no node, or several, have this name; nothing was started.
            NotConfirmed: it runs, and its start is not as safe as the setting ``durability`` asks for.

        Cost: two round trips, and one more per 400 roots or 500 names; names cost one more per 500 nodes.
        """
        with around(self._client, Submission("start", (), self.id)):
            return WorkflowState.PENDING if self._waits(names) else self._client.drive(self._start(names))

    async def astart(self, *names: str) -> WorkflowState:
        """See :meth:`start`."""
        async with around(self._client, Submission("start", (), self.id)):
            return WorkflowState.PENDING if self._waits(names) else await self._client.adrive(self._start(names))

    def _start(self, names: Sequence[str]) -> Steps[WorkflowState]:
        # Begun late: a creation that waited for a commit may have found a live run of its key.
        keys = self._client.keys_for(self.id)
        return (yield from self._client.kept(self._verbs.start(names, self.on_piece), self.id, keys=keys))

    def _waits(self, names: Sequence[str]) -> bool:
        return postponed(self._client, self.wish, f"the start of workflow {self.id}", self._start(names))

    def was_created(self, found: graph.Created) -> None:
        """Be on the run that is stored: a creation that waited for a commit may have found a live run of its key."""
        self.id, self.created = found.id, found.word != "live"
        self._verbs = Verbs(self._client, found.id, self.definition)

    @verb
    def stop(self) -> Steps[WorkflowState]:
        """Let nothing of the workflow start any more, scheduled and retrying nodes included, until ``start``. What runs
        goes on, and its outcome counts. Raises WorkflowNotFound: it is not stored any more. Raises StateError:
        it has ended. Cost: one round trip, whatever the number of nodes.
        """
        return then(graph.stop(self._client.keys, self.id), self._verbs.stopped)

    @verb
    def cancel(self) -> Steps[WorkflowState]:
        """End the workflow: nothing starts any more; what runs is asked to stop, then killed after ``kill_timeout``.

        Returns ``cancelled``; ``running`` while nodes that were asked to stop, or undo what was done, still run; or the
        final state that it was in already. Raises WorkflowNotFound: it is not stored any more. Cost: three round trips,
        and one more per 200 nodes.
        """
        return self._verbs.cancel(self.on_piece)

    @verb
    def retry_failed(self) -> Steps[WorkflowState]:
        """Run the failed, cancelled and quarantined nodes again, with fresh budgets, and go on from there.

        Nodes that succeeded do not run again. It may be asked while others still run. Raises WorkflowNotFound: it is
        not stored any more. Raises StateError: none of its nodes has failed, it was cancelled, or what it did
        was undone. Cost: two round trips, and one more per 200 failed nodes.
        """
        return self._verbs.retry(self.on_piece)

    def wait(self, timeout: Duration | None = None, *, allow_wait: bool = False) -> WorkflowState:
        """Wait until the workflow has ended, and return how. Does not poll. From coroutines: ``await run``.

        Args:
            timeout: the longest wait; None waits for ever, 0 only looks.
            allow_wait: wait even inside of a job, or on a running event loop.

        Raises:
            WaitRefused: it is called inside of a job, or blocks a running event loop.
            WaitTimeout: it has not ended by then; it goes on.
            WorkflowNotFound: it is not stored, or was deleted meanwhile.
            StoreUnavailable: the server did not answer for as long as the setting ``timeout`` says.
            ClosedError: the application was closed meanwhile.

        Cost: one round trip when it has ended; four when it has not, and one more each five seconds, which all that
        the application waits for share, as they share one connection.
        """
        if (timeout is None or timeout) and not allow_wait:
            check_wait("wait()", "await run")
        end = patience(timeout)
        return self._verbs.ended(wait_end(self._client, graph.watch_flow, self.id, end), timeout)

    def __await__(self) -> Generator[Any, None, WorkflowState]:
        """Wait until the workflow has ended, and return how; ``async with asyncio.timeout(...)`` limits the wait.
        Raises WaitRefused: inside of a job. Raises WorkflowNotFound: it is not stored, or was deleted meanwhile.
        """
        return self._ended().__await__()

    async def _ended(self) -> WorkflowState:
        check_wait("await run", accept="asyncio.to_thread(run.wait, allow_wait=True)")
        return self._verbs.ended(await await_end(self._client, graph.watch_flow, self.id, None), None)

    @verb
    def outputs(self, *names: str) -> Steps[dict[str, Any]]:
        """What nodes returned, by their names; those that have not succeeded are left out.

        Args:
            names: of the nodes; without any, of those that nothing follows.

        Raises:
            WorkflowNotFound: it is not stored any more.
            NotFound: no node, or several, have such a name.
            ResultMismatch: an output does not fit its task's return annotation.

        Cost: one round trip, and one more per 500 nodes.
        """
        stored = yield from verbs.every(self._client, self.id, self._jobs.reader)
        chosen = verbs.named(self.id, names, stored) if names else verbs.leaves(stored)
        return verbs.outputs(chosen, stored, self._client.keys.seal)

    @verb
    def nodes(
        self, state: State | str | None = None, *, limit: int = 100, after: str | None = None
    ) -> Steps[Page[NodeRecord]]:
        """The nodes, a page at a time, in the order of their definition; added ones after that. Returns their records.
        Its ``count`` is of all stored nodes, with those that a run does not count (undo, callbacks, joins), and with
        large values that several nodes take, which are on no page. Raises WorkflowNotFound: it is not stored any
        more. Raises OptionsError: an argument is out of range. Cost: one round trip for the first 100 nodes, and one
        more per 500 others that are looked at.

        Args:
            state: only nodes in this state; a page looks at 1,000 nodes, so it may hold fewer than ``limit``.
            limit: 1 to 1000.
            after: ``next`` of the page before.
        """
        return verbs.page(self._client, self._jobs.reader, self.id, state, limit, after)

    @verb
    def node(self, name: str) -> Steps[Job[Any]]:
        """A handle on the job of one node.

        Its ``result()`` is what its own function returned: of a map and of a node that ran another workflow, which
        others did the work of, :meth:`outputs` tells what they came to. ``name``: of the node; or of its task, where
        that has one node. Raises WorkflowNotFound: the workflow is not stored any more. Raises NotFound: no node, or
        several, have this name. Cost: one round trip, and one more per 500 nodes.
        """
        stored = yield from verbs.every(self._client, self.id, self._jobs.reader)
        return self._jobs.handle(verbs.named(self.id, [name], stored)[0].job)

    @verb
    def expire(self, after: Duration | None) -> Steps[None]:
        """Say how long the workflow stays after its end; counted from now where it has ended already. ``after``: None
        keeps it for ever. Raises WorkflowNotFound: it is not stored any more. Raises OptionsError: ``after`` is out of
        range. Cost: one round trip.
        """
        ttl = FOR_EVER if after is None else microseconds(seconds(after, "after"))
        return then(graph.expire(self._client.keys, self.id, ttl), self._verbs.told)

    @verb
    def delete(self) -> Steps[None]:
        """Remove the workflow with all its nodes, in whatever state it is. This cannot be undone. It is gone from all
        lists at once; nodes that run are asked to stop, and whatever they still say is refused. Raises
        WorkflowNotFound: it is not stored any more. Cost: three round trips, and one more per 400 nodes.
        """
        return self._verbs.delete(self.on_piece)

    def __repr__(self) -> str:
        return f"<WorkflowRun {self.id} of {self.definition}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkflowRun) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    astop = twin(stop)
    acancel = twin(cancel)
    aretry_failed = twin(retry_failed)
    aoutputs = twin(outputs)
    anodes = twin(nodes)
    anode = twin(node)
    aexpire = twin(expire)
    adelete = twin(delete)


H = TypeVar("H", bound=Job[Any] | WorkflowRun)

ReturnWhen = Literal["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"]

# Ids that one message names.
_NAMED = 5
# Seconds that are given to what has ended at the same time as the first.
_NOW = 0.0


class Waited(NamedTuple, Generic[H]):
    """What came of a wait: handles in the order in which they were given, each once.

    Attributes:
        done: of what has ended, or is not stored any more.
        pending: of what has not.
    """

    done: list[H]
    pending: list[H]


class Completions(Generic[H]):
    """Handles as their jobs or workflows end: for ``for`` and for ``async for``. Made by ``app.as_completed(...)``."""

    def __init__(self, client: Client, handles: Iterable[H], timeout: Duration | None, allow_wait: bool) -> None:
        self._client = client
        self._handles = _checked(client, handles)
        self._left = dict(self._handles)
        self._timeout = patience(timeout)
        self._end = None if self._timeout is None else monotonic() + self._timeout
        self._allow_wait = allow_wait or self._timeout == 0

    def __iter__(self) -> Iterator[H]:
        self.refuse("as_completed()", "async for job in app.as_completed(jobs)")
        return (handle for handles in self.batches() for handle, _ in handles)

    async def __aiter__(self) -> AsyncIterator[H]:
        self.refuse("as_completed()")
        async for handles in self.abatches():
            for handle, _ in handles:
                yield handle

    def batches(self) -> Iterator[list[tuple[H, str]]]:
        """Handles that have ended with their states, as many as are known at a time. Raises WaitTimeout."""
        if not self._left:
            return
        yield self._seen(ask_all(self._client, self._calls()))
        if not self._more():
            return
        inbox = Inbox()
        self._client.ends.add(self._looks(), inbox.put)
        try:
            while self._left:
                told = [inbox.get(self._end)]
                while told[-1] is not None:
                    told.append(inbox.get(_NOW))
                yield self._told(told[:-1])
        finally:
            self._client.ends.remove(list(self._left), inbox.put)

    async def abatches(self) -> AsyncGenerator[list[tuple[H, str]]]:
        if not self._left:
            return
        await self._client.ready()
        yield self._seen(await aask_all(self._client, self._calls()))
        if not self._more():
            return
        inbox = AsyncInbox()
        self._client.ends.add(self._looks(), inbox.put)
        try:
            while self._left:
                told = [await inbox.get(self._end)]
                while told[-1] is not None:
                    told.append(await inbox.get(_NOW))
                yield self._told(told[:-1])
        finally:
            self._client.ends.remove(list(self._left), inbox.put)

    def refuse(self, verb: str, pair: str = "") -> None:
        """See :func:`headrace.running_job.check_wait`; a mere look, and a wait that is accepted, are not refused."""
        if not self._allow_wait:
            check_wait(verb, pair)

    def parted(self) -> Waited[H]:
        """What has ended, as far as :meth:`batches` told of it, and what has not."""
        done = [handle for id, handle in self._handles.items() if id not in self._left]
        return Waited(done, list(self._left.values()))

    def _looks(self) -> list[tuple[str, Look]]:
        looks: tuple[Look, Look] = (graph.watch_flow, partial(produce.watch, most=0))
        return [(id, looks[isinstance(handle, Job)]) for id, handle in self._left.items()]

    def _calls(self) -> list[Call[Any]]:
        return [look(self._client.keys, id, 0) for id, look in self._looks()]

    def _seen(self, seen: Sequence[Any]) -> list[tuple[H, str]]:
        words = list(zip(self._left, map(end_of, seen), strict=True))
        return [(self._left.pop(id), word) for id, word in words if word]

    def _more(self) -> bool:
        if self._left and self._timeout == 0:
            raise WaitTimeout(self._late())
        return bool(self._left)

    def _told(self, told: Sequence[tuple[str, str]]) -> list[tuple[H, str]]:
        if not told:
            raise WaitTimeout(self._late())
        # An id that was told twice, since it ended while the connection was lost, counts once.
        return [(self._left.pop(id), word) for id, word in told if id in self._left]

    def _late(self) -> str:
        more = f" and {len(self._left) - _NAMED} more" if len(self._left) > _NAMED else ""
        fault = f"the server does not answer ({self._client.ends.fault}); " if self._client.ends.fault else ""
        return (
            f"{len(self._left)} of {len(self._handles)} have not ended after {self._timeout:g} s: "
            f"{', '.join(list(self._left)[:_NAMED])}{more}: {fault}wait again, or cancel them"
        )


def _checked(client: Client, handles: Iterable[H]) -> dict[str, H]:
    """Handles by id, each once. Raises ArgumentError: one is not a handle, or belongs to another application."""
    if isinstance(handles, (str, bytes, Job, WorkflowRun)) or not isinstance(handles, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(f"a wait takes a list of jobs and workflow runs, not {handles!r}: write [job]")
    found: dict[str, H] = {}
    for handle in handles:
        if not isinstance(handle, (Job, WorkflowRun)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(
                f"a wait takes handles of jobs and workflow runs, not {handle!r}: task.enqueue(...) gives one, and "
                f"app.jobs.get(id)"
            )
        if handle._client is not client:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - no user needs it
            raise ArgumentError(f"{handle!r} belongs to another application: wait with that one")
        found[handle.id] = handle
    return found


def wait(
    client: Client, handles: Iterable[H], timeout: Duration | None, return_when: ReturnWhen, allow_wait: bool
) -> Waited[H]:
    completions, enough = Completions(client, handles, timeout, allow_wait), _enough(return_when)
    completions.refuse("wait()", "await app.await_(jobs)")
    with contextlib.suppress(WaitTimeout):
        for ended in completions.batches():
            if enough(ended):
                break
    return completions.parted()


async def await_(
    client: Client, handles: Iterable[H], timeout: Duration | None, return_when: ReturnWhen, allow_wait: bool
) -> Waited[H]:
    completions, enough = Completions(client, handles, timeout, allow_wait), _enough(return_when)
    completions.refuse("await_()")
    async with contextlib.aclosing(completions.abatches()) as batches:
        with contextlib.suppress(WaitTimeout):
            async for ended in batches:
                if enough(ended):
                    break
    return completions.parted()


def _enough(when: ReturnWhen) -> Callable[[Sequence[tuple[Any, str]]], bool]:
    """Whether a wait is over, by what has ended since it was asked last."""
    if when not in get_args(ReturnWhen):
        raise OptionsError(f"return_when must be one of {', '.join(get_args(ReturnWhen))}, not {when!r}")
    if when == "FIRST_EXCEPTION":
        return lambda ended: any(state != "succeeded" for _, state in ended)
    return lambda ended: when == "FIRST_COMPLETED" and bool(ended)
