"""A page of jobs of one state: which structures hold them, and the bounded reads of these. Decides; no I/O."""

from __future__ import annotations

from typing import Any

from headrace.admin.job_query import JobQuery
from headrace.admin.pagination import cursor_of
from headrace.model.job import State
from headrace.model.job_record import Finder, Record
from headrace.model.page import Page
from headrace.protocol import index_pages, overviews
from headrace.protocol.index_pages import WALK
from headrace.protocol.script import Call
from headrace.store.client import Client, Steps

# Ids that one page looks at when it filters: what a page costs must not grow with the jobs that do not match.
LOOK = 1000
# Records that one script reads: the server does nothing else meanwhile, and 500 hold it up for 25 ms.
READ = 100


def _indexes(client: Client, query: JobQuery, seen: overviews.Overview | None) -> Steps[tuple[list[str], int | None]]:
    """The structures that hold the jobs asked for, in order; and how many jobs, where that had to be asked anyway."""
    if query.state is State.BLOCKED and query.key is not None:
        return [f"chain:{query.key}"], None
    if query.state in (State.STOPPED, State.SKIPPED):
        return [], 0
    if query.state is State.READY and query.queue is not None:
        return [f"ready:{query.queue}"], None
    if query.state is State.PARKED and query.task is not None:
        return [f"parked:{query.task}"], None
    if query.state not in (State.READY, State.PARKED, State.RUNNING, State.BLOCKED):
        return [query.state], None
    if seen is None:
        seen = yield overviews.overview(client.keys, details=False)
    assert seen is not None
    names: dict[State, list[str]] = {
        State.BLOCKED: [],
        State.READY: [f"ready:{queue.name}" for queue in seen.queues if queue.size],
        State.PARKED: [f"parked:{task}" for task in sorted(seen.parked)],
        State.RUNNING: sorted(f"claims:{worker.owner}" for worker in seen.workers if worker.running),
    }
    return names[query.state], seen.states.get(query.state, 0)


def page_of(
    client: Client, finder: Finder, query: JobQuery, seen: overviews.Overview | None = None
) -> Steps[Page[Record]]:
    """What :meth:`Jobs.page` does, as steps.

    Args:
        seen: tells which queues, tasks and workers there are; None: that is asked where it must be known.
    """
    names, count = yield from _indexes(client, query, seen)
    last: tuple[int, str] | None = None
    if query.after is not None:
        names = _behind(names, query.after[0])
        last = query.after[1:] if query.after[0] in names else None
    several, found, looked = count is not None, list[Record](), 0
    while names:
        want = min(READ if query.filters else query.limit - len(found), READ, LOOK - looked)
        reads: dict[str, Any] = {"values": query.values, "finder": finder}
        rows: list[tuple[str, str, int]]
        if several or query.state is State.READY:
            rows, records, size = yield from _walked(client, query, names, last, want, reads, counted=several)
            count = size if count is None else count
        else:
            piece: index_pages.IndexPage = yield index_pages.page(
                client.keys, names[0], want, last, 0, query.desc, *query.scores, **reads
            )
            count, rows = piece.count if count is None else count, [(names[0], *row) for row in piece.rows]
            records = piece.records
        for (name, id, score), record in zip(rows, records, strict=True):
            looked += 1
            if record is not None and query.wants(record):
                found.append(record)
            if len(found) == query.limit or looked == LOOK:
                return Page(found, count or 0, cursor_of(score, id, name))
        if len(rows) < want:
            names, last = names[WALK:], None
        else:
            name, id, score = rows[-1]
            names, last = _behind(names, name), (score, id)
    return Page(found, count or 0, None)


def _behind(names: list[str], place: str) -> list[str]:
    """The structures from one of them on; a lane stands behind the line of its queue."""
    line, bar, _ = place.partition("|")
    if bar and line in names and place not in names:
        return [place, *(name for name in names if name > line)]
    return [name for name in names if name >= place]


def _walked(
    client: Client,
    query: JobQuery,
    names: list[str],
    last: tuple[int, str] | None,
    limit: int,
    reads: dict[str, Any],
    *,
    counted: bool,
) -> Steps[tuple[list[tuple[str, str, int]], list[Record | None], int]]:
    """The next jobs of several structures: name, id and score of each, its record; and how many are in the first one.

    There are fewer than asked for when 50 structures hold no more. Jobs of a queue wait in its lanes, too.
    """
    kind = names[0].partition(":")[0]
    short = [name.partition(":")[2] for name in names[:WALK]]
    calls: list[Call[Any]] = [
        index_pages.walk(client.keys, kind, short, limit, last, query.desc, *query.scores, **reads)
    ]
    calls += [] if counted else [index_pages.page(client.keys, names[0].partition("|")[0], 0)]
    found: index_pages.WalkedPart
    found, *pages = yield calls
    rows = [(f"{kind}:{name}", id, score) for name, rows in found.rows for id, score in rows]
    return rows, found.records, pages[0].count if pages else 0
