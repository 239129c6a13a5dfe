"""Pages of jobs of one state: which structures hold the jobs, and bounded reads of these. Decides; does no I/O.

1. The bounds that all lists share: number of rows, order, times, and the end of the last page.
2. :class:`JobQuery`: a checked request for jobs, which also decides on each record.
3. :class:`LookedJobs`, :func:`page_of` and :func:`own_page`: the reads that make a page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from headrace.errors import OptionsError
from headrace.model.ids import check_name
from headrace.model.job import HEAD_START, MOST_PRIORITY, State
from headrace.model.job_record import Finder, Page, Record
from headrace.model.option_checks import moment
from headrace.protocol import overviews
from headrace.protocol.index_pages import SEARCHED, WALK, Slice, WalkedPart, walk
from headrace.protocol.produce import read
from headrace.store.client import Client, Steps

Order = Literal["asc", "desc"]

MOST = 1000  # rows of one page at most: what a page costs must be bounded for every caller


def check_limit(limit: int) -> int:
    """``limit``, if a page may have this many rows. Raises OptionsError: it is not a whole number from 1 to 1000."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(f"limit must be a whole number from 1 to {MOST}, not {limit!r}")
    return limit


def descending(order: str) -> bool:
    if order not in ("asc", "desc"):
        raise OptionsError(f"order must be asc or desc, not {order!r}")
    return order == "desc"


def window(since: datetime | None, until: datetime | None) -> tuple[int | None, int | None]:
    """Both bounds in microseconds, the earlier first. Raises OptionsError: one has no zone, or they are swapped."""
    low = None if since is None else moment("since", since)
    high = None if until is None else moment("until", until)
    if since is not None and until is not None and since > until:
        raise OptionsError(
            f"since={since} is later than until={until}: since is the earlier one in both orders, so swap the two"
        )
    return low, high


def cursor_of(score: int, id: str, index: str) -> str:
    return f"{score}~{id}~{index}"


def position(text: str, name: str) -> tuple[int, str, str]:
    """Score, id and index of the cursor given as ``name``. Raises OptionsError: no page gave this text."""
    try:
        score, id, index = text.split("~", 2)
        return int(score), id, index
    except (ValueError, AttributeError):
        raise OptionsError(f"{name}={text!r} is not the `next` of a page") from None


_STREAM_ID = re.compile(r"[0-9]{1,15}(-[0-9]{1,15})?", re.ASCII)


def stream_position(after: str | None) -> str:
    """The id of an entry behind which a page begins; empty for none. Raises OptionsError: no entry has such an id."""
    if after is None:
        return ""
    if not isinstance(after, str) or not _STREAM_ID.fullmatch(after):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(f"after={after!r:.80} is not the id of an act or event, nor the `next` of a page")
    return after


class JobQuery(msgspec.Struct, frozen=True):
    """A page of jobs of one state; :meth:`headrace.admin.jobs.Jobs.page` says what each means."""

    state: State
    queue: str | None
    task: str | None
    key: str | None
    limit: int
    after: tuple[str, int, str] | None
    desc: bool
    since: int | None
    until: int | None
    values: bool

    @property
    def compared(self) -> dict[str, str | None]:
        """What the records of jobs are compared with: the structures of some states say it already."""
        named = {State.READY: "queue", State.PARKED: "task", State.BLOCKED: "key"}.get(self.state)
        return {name: None if name == named else getattr(self, name) for name in ("queue", "task", "key")}

    @property
    def filters(self) -> bool:
        return self._by_due or any(value is not None for value in self.compared.values())

    @property
    def scores(self) -> tuple[int | None, int | None]:
        """Between which scores to look. Those of ready jobs are not their times: a priority moves them."""
        most = MOST_PRIORITY * HEAD_START if self.state is State.READY else 0
        return None if self.since is None else self.since - most, None if self.until is None else self.until + most

    @property
    def _by_due(self) -> bool:
        return self.state is State.READY and (self.since is not None or self.until is not None)

    def wants(self, record: Record) -> bool:
        if self._by_due and not (self.since or 0) <= record.due_us <= (self.until or record.due_us):
            return False
        return (
            self.queue in (None, record.queue) and self.task in (None, record.task) and self.key in (None, record.key)
        )


def state_of(state: State | str) -> State:
    try:
        return State(state)
    except ValueError:
        raise OptionsError(f"there is no state {state!r}: the states are {', '.join(State)}") from None


def query_of(
    state: State | str, queue: str | None, task: str | None, key: str | None, limit: int, after: str | None, order: str,
    since: datetime | None, until: datetime | None, values: bool,
) -> JobQuery:  # fmt: skip
    score, id, index = (0, "", "") if after is None else position(after, "after")
    low, high = window(since, until)
    for kind, name in (("queue", queue), ("task", task)):
        if name is not None:
            check_name(kind, name)
    last = (index, score, id) if index else None
    return JobQuery(state_of(state), queue, task, key, check_limit(limit), last, descending(order), low, high, values)


# Round trips that one page takes at most when it filters, and jobs that it looks at in each: what a page costs must not
# grow with the jobs that do not match.
TRIPS = 10
LOOKS = 1000
# Records that one script reads: the server does nothing else meanwhile, and 500 hold it up for 25 ms.
READ = 100


class LookedJobs(msgspec.Struct, frozen=True):
    """A page, and how many jobs were looked at for it."""

    page: Page[Record]
    looked: int


def _indexes(client: Client, query: JobQuery, seen: overviews.Overview | None) -> Steps[tuple[list[str], int | None]]:
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


def _records(client: Client, part: WalkedPart, query: JobQuery, finder: Finder) -> Steps[list[Record | None]]:
    """Each of several shards finds a whole page, most of it behind the rows of others: only what is shown is read."""
    if client.count == 1 or not part.rows:
        return part.records
    records: list[Record | None] = yield read(client.keys, [id for id, _ in part.rows], finder, lean=not query.values)
    return records


def page_of(
    client: Client,
    finder: Finder,
    query: JobQuery,
    seen: overviews.Overview | None = None,
    words: Sequence[str] = (),
    matches: Callable[[Record], bool] | None = None,
) -> Steps[LookedJobs]:
    """What :meth:`Jobs.page` does, as steps. ``seen``: tells which queues, tasks and workers there are; None: that is
    asked where it must be known. ``words``: each job that ``matches`` has them stored; see
    :func:`headrace.protocol.index_pages.walk`. ``matches``: decides further which jobs are on the page.
    """
    names, count = yield from _indexes(client, query, seen)
    place, last = "", None
    if query.after is not None:
        index, score, id = query.after
        index, _, place = index.partition(" ")
        names = [name for name in names if name >= index]
        place, last = (place, (score, id)) if names[:1] == [index] else ("", None)
    filtered = query.filters or matches is not None
    found, looked, trips = list[Record](), 0, 0
    while names:
        room = min(query.limit - len(found), READ)
        part: WalkedPart = yield walk(
            client.keys, names[:WALK], Slice(room, last, 0, query.desc, *query.scores), place=place, **query.compared,
            looks=SEARCHED if words else LOOKS if filtered else room, words=words, finder=finder,
            values=query.values if client.count == 1 else None,
        )  # fmt: skip
        records = yield from _records(client, part, query, finder)
        count, looked, trips = part.count if count is None else count, looked + part.looked, trips + 1
        wanted = (one for one in records if one is not None and query.wants(one))
        found += wanted if matches is None else filter(matches, wanted)
        names, place, last = names[part.behind if part.last else WALK :], part.place, part.last
        if last and (len(found) == query.limit or (filtered and trips >= TRIPS)):
            return LookedJobs(Page(found, count, cursor_of(*last, f"{names[0]} {place}".strip())), looked)
    return LookedJobs(Page(found, count or 0, None), looked)


def own_page(client: Client, limit: int, after: str | None) -> Steps[Page[Record]]:
    """Headrace's own jobs of any state, the newest first. Cost: one round trip for each 100."""
    last = None if after is None else position(after, "after")[:2]
    found, left, count = list[Record](), check_limit(limit), 0
    while left > 0:
        room = min(left, READ)
        part: WalkedPart = yield walk(client.keys, ["own"], Slice(room, last), looks=room, values=False)
        found += (record for record in part.records if record is not None)
        last, count, left = part.last, part.count, left - part.looked
        if last is None:
            break
    return Page(found, count, None if last is None else cursor_of(*last, "own"))
