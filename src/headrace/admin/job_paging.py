"""A page of jobs of one state: which structures hold them, and the bounded reads of these. Decides; no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from headrace.admin.job_query import JobQuery
from headrace.admin.pagination import cursor_of
from headrace.model.job import State
from headrace.model.job_record import Finder, Page, Record
from headrace.protocol import overviews
from headrace.protocol.index_pages import SEARCHED, WALK, WalkedPart, walk
from headrace.store.client import Client, Steps

# Round trips that one page takes at most when it filters, and jobs that it looks at in each: what a page costs must not
# grow with the jobs that do not match.
TRIPS, LOOKS = 20, 1000
# Records that one script reads: the server does nothing else meanwhile, and 500 hold it up for 25 ms.
READ = 100


class LookedJobs(msgspec.Struct, frozen=True):
    """A page, and how many jobs were looked at for it."""

    page: Page[Record]
    looked: int


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
    client: Client,
    finder: Finder,
    query: JobQuery,
    seen: overviews.Overview | None = None,
    words: Sequence[str] = (),
    matches: Callable[[Record], bool] | None = None,
) -> Steps[LookedJobs]:
    """What :meth:`Jobs.page` does, as steps.

    Args:
        seen: tells which queues, tasks and workers there are; None: that is asked where it must be known.
        words: each job that ``matches`` has them stored; see :func:`headrace.protocol.index_pages.walk`.
        matches: decides further which jobs are on the page.
    """
    names, count = yield from _indexes(client, query, seen)
    place, last = "", None
    if query.after is not None:
        index, score, id = query.after
        index, _, place = index.partition(" ")
        names = [name for name in names if name >= index]
        place, last = (place, (score, id)) if names[:1] == [index] else ("", None)
    since, until = query.scores
    filtered = query.filters or matches is not None
    found, looked, trips = list[Record](), 0, 0
    while names:
        room = min(query.limit - len(found), READ)
        part: WalkedPart = yield walk(
            client.keys, names[:WALK], room, last, query.desc, since, until, place=place, **query.compared,
            looks=SEARCHED if words else LOOKS if filtered else room, words=words, values=query.values, finder=finder,
        )  # fmt: skip
        count, looked, trips = part.count if count is None else count, looked + part.looked, trips + 1
        wanted = (one for one in part.records if one is not None and query.wants(one))
        found += wanted if matches is None else filter(matches, wanted)
        names, place, last = names[part.behind if part.last else WALK :], part.place, part.last
        if last and (len(found) == query.limit or (filtered and trips >= TRIPS)):
            return LookedJobs(Page(found, count, cursor_of(*last, f"{names[0]} {place}".strip())), looked)
    return LookedJobs(Page(found, count or 0, None), looked)
