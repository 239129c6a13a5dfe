"""A handle on one workflow: start it, stop it, wait for it, look at its nodes, delete it.

Owns no connection and no copy of the workflow: each verb is about what is stored now, so that a handle cannot be out
of date. Each verb has an asynchronous pair; what a reply means is decided once, in the functions below.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.admin.jobs import Jobs
from headrace.model import elsewhere
from headrace.model.job import State
from headrace.model.job_record import Page
from headrace.model.workflow import NodeRecord, WorkflowRecord, WorkflowState
from headrace.protocol import graph
from headrace.running_job import check_wait
from headrace.settings import Duration, patience
from headrace.store.client import Client, Steps
from headrace.store.waiting import await_end, wait_end
from headrace.tasks.job_handle import Job
from headrace.tasks.submission import Submission, around, postponed
from headrace.tasks.task import Task
from headrace.workflows import verbs
from headrace.workflows.verbs import NodeQuery, OnPiece, Verbs, found

Tasks = Mapping[str, Task[..., Any, Any]]


class WorkflowRun:
    """One workflow in the store, made by ``workflow.create(...)`` or found by ``app.workflows.get(id)``.

    Attributes:
        id: 21 characters that sort by the time of the creation.
        definition: name of its definition.
        created: False when ``create`` found a live workflow of the same key, and this is that one.
        wish: the option ``after_commit`` of its definition; None: as the application says.
        on_piece: called after each piece of a long operation with the number of pieces that are left, those of other
            workflows included; for progress bars.
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
            WorkflowStateError: it has ended.
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
        return (yield from self._client.kept(self._verbs.start(names, self.on_piece), self.id))

    def _waits(self, names: Sequence[str]) -> bool:
        return postponed(self._client, self.wish, f"the start of workflow {self.id}", self._start(names))

    def was_created(self, found: graph.Created) -> None:
        """Be on the run that is stored: a creation that waited for a commit may have found a live run of its key."""
        self.id, self.created = found.id, found.word != "live"
        self._verbs = Verbs(self._client, found.id, self.definition)

    def stop(self) -> WorkflowState:
        """Let nothing of the workflow start any more, scheduled and retrying nodes included, until ``start``. What runs
        goes on, and its outcome counts. Raises WorkflowNotFound: it is not stored any more. Raises WorkflowStateError:
        it has ended. Cost: one round trip, whatever the number of nodes.
        """
        return self._verbs.stopped(self._client.run(self._verbs.stop()))

    async def astop(self) -> WorkflowState:
        """See :meth:`stop`."""
        return self._verbs.stopped(await self._client.arun(self._verbs.stop()))

    def cancel(self) -> WorkflowState:
        """End the workflow: nothing starts any more; what runs is asked to stop, then killed after ``kill_timeout``.

        Returns ``cancelled``; ``running`` while nodes that were asked to stop, or undo what was done, still run; or the
        final state that it was in already. Raises WorkflowNotFound: it is not stored any more. Cost: three round trips,
        and one more per 200 nodes.
        """
        return self._client.drive(self._verbs.cancel(self.on_piece))

    async def acancel(self) -> WorkflowState:
        """See :meth:`cancel`."""
        return await self._client.adrive(self._verbs.cancel(self.on_piece))

    def retry_failed(self) -> WorkflowState:
        """Run the failed, cancelled and quarantined nodes again, with fresh budgets, and go on from there.

        Nodes that succeeded do not run again. It may be asked while others still run. Raises WorkflowNotFound: it is
        not stored any more. Raises WorkflowStateError: none of its nodes has failed, it was cancelled, or what it did
        was undone. Cost: two round trips, and one more per 200 failed nodes.
        """
        return self._client.drive(self._verbs.retry(self.on_piece))

    async def aretry_failed(self) -> WorkflowState:
        """See :meth:`retry_failed`."""
        return await self._client.adrive(self._verbs.retry(self.on_piece))

    def wait(self, timeout: Duration | None = None, *, allow_wait: bool = False) -> WorkflowState:
        """Wait until the workflow has ended, and return how. Does not poll. From coroutines: ``await run``.

        Args:
            timeout: the longest wait; None waits for ever, 0 only looks.
            allow_wait: wait even inside of a job, or on a running event loop.

        Raises:
            WaitRefused: it is called inside of a job, or blocks a running event loop.
            ResultTimeout: it has not ended by then; it goes on.
            WorkflowNotFound: it is not stored, or was deleted meanwhile.
            StoreUnavailable: the server did not answer for as long as the setting ``timeout`` says.
            AppClosed: the application was closed meanwhile.

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

    def outputs(self, *names: str) -> dict[str, Any]:
        """What nodes returned, by their names; those that have not succeeded are left out.

        Args:
            names: of the nodes; without any, of those that nothing follows.

        Raises:
            WorkflowNotFound: it is not stored any more.
            NotFound: no node, or several, have such a name.
            ResultUndecodable: an output does not fit its task's return annotation.

        Cost: one round trip, and one more per 500 nodes.
        """
        return self._client.drive(self._outputs(names))

    async def aoutputs(self, *names: str) -> dict[str, Any]:
        """See :meth:`outputs`."""
        return await self._client.adrive(self._outputs(names))

    def nodes(
        self, state: State | str | None = None, *, limit: int = 100, after: str | None = None
    ) -> Page[NodeRecord]:
        """The nodes, a page at a time, in the order of their definition; added ones after that. Returns their records.
        Its ``count`` is of all stored nodes, with those that a run does not count (undo, callbacks, joins), and with
        large values that several nodes take, which are on no page. Raises WorkflowNotFound: it is not stored any
        more. Raises OptionsError: an argument is out of range. Cost: one round trip for the first 100 nodes, and one
        more per 500 others that are looked at.

        Args:
            state: only nodes in this state; a page looks at 1,000 nodes at most, so it may hold fewer than
                ``limit``.
            limit: 1 to 1000.
            after: ``next`` of the page before.
        """
        return self._client.drive(self._page(verbs.query(state, limit, after)))

    async def anodes(
        self, state: State | str | None = None, *, limit: int = 100, after: str | None = None
    ) -> Page[NodeRecord]:
        """See :meth:`nodes`."""
        return await self._client.adrive(self._page(verbs.query(state, limit, after)))

    def node(self, name: str) -> Job[Any]:
        """A handle on the job of one node.

        Its ``result()`` is what its own function returned: of a map and of a node that ran another workflow, which
        others did the work of, :meth:`outputs` tells what they came to. ``name``: of the node; or of its task, where
        that has one node. Raises WorkflowNotFound: the workflow is not stored any more. Raises NotFound: no node, or
        several, have this name. Cost: one round trip, and one more per 500 nodes.
        """
        return self._client.drive(self._node(name))

    async def anode(self, name: str) -> Job[Any]:
        """See :meth:`node`."""
        return await self._client.adrive(self._node(name))

    def expire(self, after: Duration | None) -> None:
        """Say how long the workflow stays after its end; counted from now where it has ended already. ``after``: None
        keeps it for ever. Raises WorkflowNotFound: it is not stored any more. Raises OptionsError: ``after`` is out of
        range. Cost: one round trip.
        """
        self._verbs.told(self._client.run(self._verbs.expire(after)))

    async def aexpire(self, after: Duration | None) -> None:
        """See :meth:`expire`."""
        self._verbs.told(await self._client.arun(self._verbs.expire(after)))

    def delete(self) -> None:
        """Remove the workflow with all its nodes, in whatever state it is. This cannot be undone. It is gone from all
        lists at once; nodes that run are asked to stop, and whatever they still say is refused. Raises
        WorkflowNotFound: it is not stored any more. Cost: three round trips, and one more per 400 nodes.
        """
        self._client.drive(self._verbs.delete(self.on_piece))

    async def adelete(self) -> None:
        """See :meth:`delete`."""
        await self._client.adrive(self._verbs.delete(self.on_piece))

    def _page(self, query: NodeQuery) -> Steps[Page[NodeRecord]]:
        return verbs.page(self._client, self._jobs.reader, self.id, query)

    def _outputs(self, names: Sequence[str]) -> Steps[dict[str, Any]]:
        stored = yield from verbs.every(self._client, self.id, self._jobs.reader)
        chosen = verbs.named(self.id, names, stored) if names else verbs.leaves(stored)
        return verbs.outputs(chosen, stored, self._client.keys.seal)

    def _node(self, name: str) -> Steps[Job[Any]]:
        stored = yield from verbs.every(self._client, self.id, self._jobs.reader)
        return self._jobs.handle(verbs.named(self.id, [name], stored)[0].job)

    def __repr__(self) -> str:
        return f"<WorkflowRun {self.id} of {self.definition}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkflowRun) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)
