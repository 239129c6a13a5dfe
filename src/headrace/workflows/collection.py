"""All workflows of an application, or those of one definition: by id, counted, in pages, and removed when they lapse.

Everything comes from indexes, so a page costs the same however many workflows are stored.
"""

from __future__ import annotations

from datetime import datetime
from typing import TypedDict, Unpack

from msgspec.structs import replace

from headrace.admin.job_paging import Order, check_limit, cursor_of, descending, position, window
from headrace.admin.jobs import Jobs
from headrace.errors import OptionsError
from headrace.model.ids import check_name
from headrace.model.job_record import Page
from headrace.model.workflow import WorkflowRecord, WorkflowState
from headrace.protocol import graph, index_pages
from headrace.protocol.index_pages import Slice
from headrace.protocol.script import Call
from headrace.store.client import Client, Steps, then, twin, verb
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

    @verb
    def get(self, id: str) -> Steps[WorkflowRun]:
        """A handle on the stored workflow of this id. No code of yours runs: the graph is as it was stored. Raises
        WorkflowNotFound: nothing is stored under this id, or it is not the id of a workflow. Cost: one round trip,
        whatever the number of nodes.
        """
        return then(graph.read_flows(self._client.keys, [check_id(id)]), lambda rows: self.handle(found(id, rows)))

    def handle(self, record: WorkflowRecord) -> WorkflowRun:
        """A handle on the workflow of a record that was read. Cost: none."""
        return WorkflowRun(self._client, record.id, record.definition, tasks=self._tasks)

    @verb
    def page(self, *, after: str | None = None, **which: Unpack[Filter]) -> Steps[Page[WorkflowRecord]]:
        """Workflows by their creation, a page at a time.

        A row whose record is gone is passed over and removed from its index; the page goes on. Returns records without
        arguments and globals. Its ``count`` is of this definition and state, whatever the window. Raises OptionsError:
        an argument is out of range, or contradicts another. Cost: one round trip, two when ``limit`` is above 500.

        Args:
            state, definition: only theirs.
            limit: 1 to 1000; 100 when left out.
            after: ``next`` of the page before. Nothing is shown twice or passed over by it.
            offset: or a position in the order asked for, as in a list: ``page(offset=n)`` is ``all[n : n +
                limit]``, and a negative one counts from the end, so that ``offset=-100, order="asc"`` are the
                newest hundred, oldest first.
            order: ``desc``: the newest first, which is the default; or ``asc``.
            since, until: created then or between, both inclusive, with a time zone; the earlier one is ``since`` in
                either order. Positions count within the window.
        """
        view, piece = self._asked(after=after, **which)
        rest, finder = _forward(piece), self._jobs.reader
        kept: list[WorkflowRecord] = []
        left = rest.limit
        while True:
            want = min(READ, left)
            read: graph.FlowPage = yield graph.flow_page(self._client.keys, *view, replace(rest, limit=want))
            kept += [row.read_with(finder) for row in read.rows]
            left -= len(read.rows)
            if len(read.seen) < want or not left:
                break
            rest = replace(rest, after=(read.seen[-1][1], read.seen[-1][0]), offset=0)
        return self._paged(piece, kept, read.count, full=not left)

    @verb
    def ids(self, **which: Unpack[Filter]) -> Steps[list[str]]:
        """Ids of workflows by their creation; arguments and errors as of :meth:`page`. Cost: one round trip."""
        (definition, state), piece = self._asked(after=None, **which)
        call = index_pages.page(self._client.keys, f"flows:{definition}|{state}", _forward(piece))
        return then(call, lambda read: [id for id, _ in read.rows][:: -1 if piece.offset < 0 else 1])

    @verb
    def count(self, *, state: WorkflowState | str | None = None, definition: str | None = None) -> Call[int]:
        """How many workflows there are now. Cost: one round trip, whatever their number."""
        return graph.flow_count(self._client.keys, *self._view(state, definition))

    @verb
    def expire_due(self, limit: int = 100) -> Steps[int]:
        """Remove workflows whose retention is over, each wholly; workers do it by themselves. ``limit``: how many at
        most, of whatever definition. Returns how many were removed. Raises OptionsError: ``limit`` is not a whole
        number of at least 1. Cost: two round trips, and one more per 50 workflows or 400 nodes.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionsError(f"limit must be a whole number of at least 1, not {limit!r}")
        removed = 0
        for keys in self._client.shards:
            while removed < limit:
                gone, _, _ = yield graph.lapse(keys, min(SWEEP, limit - removed))
                removed += gone
                if not gone:
                    break
            yield from tend(self._client, keys)
        return removed

    def _asked(
        self, *, after: str | None, state: WorkflowState | str | None = None, definition: str | None = None,
        limit: int = 100, offset: int = 0, order: Order = "desc", since: datetime | None = None,
        until: datetime | None = None,
    ) -> tuple[tuple[str, str], Slice]:  # fmt: skip
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
        return view, Slice(check_limit(limit), place, offset, descending(order), low, high)

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

    def _paged(self, piece: Slice, kept: list[WorkflowRecord], count: int, *, full: bool) -> Page[WorkflowRecord]:
        if piece.offset < 0:
            kept.reverse()
            full = piece.offset + piece.limit < 0
        if not kept or not full:
            return Page(kept, count, None)
        return Page(kept, count, cursor_of(kept[-1].created_us, kept[-1].id, _INDEX))

    aget = twin(get)
    apage = twin(page)
    aids = twin(ids)
    acount = twin(count)
    aexpire_due = twin(expire_due)


def _forward(piece: Slice) -> Slice:
    if piece.offset >= 0:
        return piece
    size = min(piece.limit, -piece.offset)
    return replace(piece, desc=not piece.desc, offset=-piece.offset - size, limit=size)
