"""All workflows of an application, or those of one definition: by id, counted, in pages, and removed when they lapse.

Everything comes from indexes, so a page costs the same however many workflows are stored.
"""

from __future__ import annotations

from datetime import datetime
from typing import TypedDict, Unpack

import msgspec
from msgspec.structs import replace

from headrace.admin.job_paging import Order, check_limit, cursor_of, descending, position, window
from headrace.admin.jobs import Jobs
from headrace.errors import OptionsError
from headrace.model.ids import check_name
from headrace.model.job_record import Page
from headrace.model.workflow import WorkflowRecord, WorkflowState
from headrace.protocol import graph, index_pages
from headrace.protocol.script import Call
from headrace.store.client import Client, Steps
from headrace.workflows.run import Tasks, WorkflowRun
from headrace.workflows.verbs import check_id, found, tend

# Workflows that one round trip reads, and that one removes.
READ = 500
SWEEP = 100

# What a cursor of these lists was read from, so that one of app.jobs is not taken for it.
_INDEX = "workflows"


class OwnFilter(TypedDict, total=False):
    state: WorkflowState | str | None
    limit: int
    offset: int
    order: Order
    since: datetime | None
    until: datetime | None


class Filter(OwnFilter, total=False):
    definition: str | None


class _Query(msgspec.Struct, frozen=True):
    definition: str
    state: str
    limit: int
    after: tuple[int, str] | None
    offset: int
    desc: bool
    since: int | None
    until: int | None


class Workflows:
    """``app.workflows``, or the lists of one definition."""

    def __init__(self, client: Client, definition: str = "", tasks: Tasks | None = None) -> None:
        """Use ``app.workflows``; a definition has ``page``, ``count`` and ``ids`` of its own. ``definition``: only its
        workflows; empty: all. ``tasks``: by name, for the types of outputs.
        """
        self._client = client
        self._definition = definition
        self._tasks: Tasks = {} if tasks is None else tasks
        self._jobs = Jobs(client, self._tasks)

    def get(self, id: str) -> WorkflowRun:
        """A handle on the stored workflow of this id. No code of yours runs: the graph is as it was stored. Raises
        WorkflowNotFound: nothing is stored under this id, or it is not the id of a workflow. Cost: one round trip,
        whatever the number of nodes.
        """
        return self.handle(found(id, self._client.run(graph.read_flows(self._client.keys, [check_id(id)]))))

    async def aget(self, id: str) -> WorkflowRun:
        """See :meth:`get`."""
        return self.handle(found(id, await self._client.arun(graph.read_flows(self._client.keys, [check_id(id)]))))

    def handle(self, record: WorkflowRecord) -> WorkflowRun:
        """A handle on the workflow of a record that was read. Cost: none."""
        return WorkflowRun(self._client, record.id, record.definition, tasks=self._tasks)

    def page(self, *, after: str | None = None, **which: Unpack[Filter]) -> Page[WorkflowRecord]:
        """Workflows by their creation, a page at a time.

        A row whose record is gone is passed over and removed from its index; the page goes on. Returns records without
        arguments and globals. Its ``count`` is of this definition and state, whatever the window. Raises OptionsError:
        an argument is out of range, or contradicts another. Cost: one round trip, two when ``limit`` is above 500.

        Args:
            state, definition: only theirs.
            limit: 1 to 1000; 100 when left out.
            after: ``next`` of the page before. Nothing is shown twice or passed over by it, whatever comes and
                goes.
            offset: or a position in the order asked for, as in a list: ``page(offset=n)`` is ``all[n : n +
                limit]``, and a negative one counts from the end, so that ``offset=-100, order="asc"`` are the
                newest hundred, oldest first.
            order: ``desc``: the newest first, which is the default; or ``asc``.
            since, until: created then or between, both inclusive, with a time zone; the earlier one is ``since`` in
                either order. Positions count within the window.
        """
        return self._client.drive(self._page(self._query(after=after, **which)))

    async def apage(self, *, after: str | None = None, **which: Unpack[Filter]) -> Page[WorkflowRecord]:
        """See :meth:`page`."""
        return await self._client.adrive(self._page(self._query(after=after, **which)))

    def ids(self, **which: Unpack[Filter]) -> list[str]:
        """Ids of workflows by their creation; arguments and errors as of :meth:`page`. Cost: one round trip."""
        query = self._query(after=None, **which)
        return self._listed(query, self._client.run(self._ids(query)))

    async def aids(self, **which: Unpack[Filter]) -> list[str]:
        """See :meth:`ids`."""
        query = self._query(after=None, **which)
        return self._listed(query, await self._client.arun(self._ids(query)))

    def count(self, *, state: WorkflowState | str | None = None, definition: str | None = None) -> int:
        """How many workflows there are now. Cost: one round trip, whatever their number."""
        return self._client.run(self._count(state, definition))

    async def acount(self, *, state: WorkflowState | str | None = None, definition: str | None = None) -> int:
        """See :meth:`count`."""
        return await self._client.arun(self._count(state, definition))

    def expire_due(self, limit: int = 100) -> int:
        """Remove workflows whose retention is over, each wholly; workers do it by themselves. ``limit``: how many at
        most, of whatever definition. Returns how many were removed. Raises OptionsError: ``limit`` is not a whole
        number of at least 1. Cost: two round trips, and one more per 50 workflows or 400 nodes.
        """
        return self._client.drive(self._expire_due(_at_least_one(limit)))

    async def aexpire_due(self, limit: int = 100) -> int:
        """See :meth:`expire_due`."""
        return await self._client.adrive(self._expire_due(_at_least_one(limit)))

    def _query(
        self,
        *,
        after: str | None,
        state: WorkflowState | str | None = None,
        definition: str | None = None,
        limit: int = 100,
        offset: int = 0,
        order: Order = "desc",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> _Query:
        if isinstance(offset, bool) or not isinstance(offset, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionsError(f"offset must be a whole number, not {offset!r}")
        place: tuple[int, str] | None = None
        if after is not None:
            if offset:
                raise OptionsError("after and offset both say where the page begins: give one of them")
            score, id, index = position(after, "after")
            if index != _INDEX:
                raise OptionsError(f"after={after!r} is the `next` of another list, not of workflows")
            place = score, id
        low, high = window(since, until)
        view = self._view(state, definition)
        return _Query(*view, check_limit(limit), place, offset, descending(order), low, high)

    def _view(self, state: WorkflowState | str | None, definition: str | None) -> tuple[str, str]:
        if self._definition and definition not in (None, self._definition):
            raise OptionsError(f"these are the workflows of {self._definition}: app.workflows has those of others")
        name = self._definition or definition or ""
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionsError(f"definition is the name of a workflow, not {name!r:.80}: workflow.page() has its own")
        if name:
            check_name("workflow", name)
        try:
            return name, WorkflowState(state) if state is not None else ""
        except ValueError:
            raise OptionsError(f"there is no state {state!r}: the states are {', '.join(WorkflowState)}") from None

    def _page(self, query: _Query) -> Steps[Page[WorkflowRecord]]:
        forward, finder = _forward(query), self._jobs.reader
        kept: list[WorkflowRecord] = []
        last, offset, left = query.after, forward.offset, forward.limit
        while True:
            want = min(READ, left)
            piece: graph.FlowPage = yield graph.flow_page(
                self._client.keys,
                query.definition,
                query.state,
                want,
                last,
                offset,
                desc=forward.desc,
                since=query.since,
                until=query.until,
            )
            kept += [row.read_with(finder) for row in piece.rows]
            left, offset = left - len(piece.rows), 0
            if len(piece.seen) < want or not left:
                break
            last = piece.seen[-1][1], piece.seen[-1][0]
        return self._paged(query, kept, piece.count, full=not left)

    def _paged(self, query: _Query, kept: list[WorkflowRecord], count: int, *, full: bool) -> Page[WorkflowRecord]:
        if query.offset < 0:
            kept.reverse()
            full = query.offset + query.limit < 0
        if not kept or not full:
            return Page(kept, count, None)
        return Page(kept, count, cursor_of(kept[-1].created_us, kept[-1].id, _INDEX))

    def _ids(self, query: _Query) -> Call[index_pages.IndexPage]:
        forward = _forward(query)
        return index_pages.page(
            self._client.keys,
            f"flows:{query.definition}|{query.state}",
            limit=forward.limit,
            offset=forward.offset,
            desc=forward.desc,
            since=query.since,
            until=query.until,
        )

    def _listed(self, query: _Query, piece: index_pages.IndexPage) -> list[str]:
        ids = [id for id, _ in piece.rows]
        return ids[::-1] if query.offset < 0 else ids

    def _count(self, state: WorkflowState | str | None, definition: str | None) -> Call[int]:
        return graph.flow_count(self._client.keys, *self._view(state, definition))

    def _expire_due(self, limit: int) -> Steps[int]:
        removed = 0
        for keys in self._client.shards:
            while removed < limit:
                gone, _, _ = yield graph.lapse(keys, min(SWEEP, limit - removed))
                removed += gone
                if not gone:
                    break
            yield from tend(self._client, keys)
        return removed


def _forward(query: _Query) -> _Query:
    if query.offset >= 0:
        return query
    size = min(query.limit, -query.offset)
    return replace(query, desc=not query.desc, offset=-query.offset - size, limit=size)


def _at_least_one(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(f"limit must be a whole number of at least 1, not {limit!r}")
    return limit
