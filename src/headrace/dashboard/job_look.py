"""A search by text or exception: scripts look at 250 jobs each in the store, and only what may match is read.

What a page shows decides, since values are hidden there: a script that matches too much costs a read, no more. So a
word is given to the script only if whatever shows it has it in what is stored, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import partial

import msgspec

from headrace.admin.pagination import cursor_of, position, window
from headrace.dashboard.dashboard_site import DashboardSite
from headrace.dashboard.job_search import JobSearch
from headrace.model.job_record import Record
from headrace.model.page import Page
from headrace.protocol import produce
from headrace.protocol.index_pages import MOST, LookedPiece, look
from headrace.store.client import Steps

# Looks of one round trip, and how many such round trips a press makes at most.
LOOKS, ROUNDS = 2, 10
# After so many round trips, those that read records included, a press begins no further one.
TRIPS = 18
# Records that a press reads, those of one script, and jobs on a page.
READS, READ, PAGE = 1000, 100, 50
# A list looks for these words in what it writes itself, and not in what is stored.
_OURS = (
    "true false null bytes nested too deeply shown arguments that cannot be read the result of a parent which not there"
)

_WORD = re.compile(r"[a-z]{3,}")


class LookedJobs(msgspec.Struct, frozen=True):
    """What a press found: a page, and how many jobs it looked at."""

    page: Page[Record]
    looked: int


def words_of(text: str, names: Collection[str]) -> list[str]:
    """Words of a search that each job which shows the text has stored, in lower case.

    Args:
        names: of parameters: a list shows them beside values, and they are not stored.
    """
    found = dict.fromkeys(_WORD.findall(text.lower()))
    unsure = [*_OURS.split(), *(name.lower() for name in names)]
    return [word for word in found if not any(word in other for other in unsure)]


def index_of(search: JobSearch) -> str:
    """The one structure that holds the jobs of a search; empty: there are several, or its order is another one."""
    if search.state in ("ready", "parked"):
        name = search.queue if search.state == "ready" else search.task
        timed = search.state == "ready" and (search.since or search.until)
        return f"{search.state}:{name}" if name and not timed else ""
    return "" if search.state in ("running", "blocked") else search.state


def look_on(site: DashboardSite, search: JobSearch, now: int, matches: Callable[[Record], bool]) -> Steps[LookedJobs]:
    """The next page of a search, of at most 5,000 jobs, of which at most 1,500 are read.

    Cost: a round trip for each 500 jobs, and one more where some of them may match; 19 at most.
    """
    index, keys = index_of(search), site.app.client.keys
    # Lists show the names of parameters of tasks that are defined here.
    names = {name for task in site.app.tasks.values() for name in task.signature.parameters.names}
    words = words_of(f"{search.text} {search.error.rpartition('.')[2]}", names)
    since, until = window(*search.window(now))
    ask = partial(
        look, keys, index, words, queue=search.queue, task=search.task, key=search.key, since=since, until=until
    )
    last: tuple[int, str] | None = position(search.after, "after")[:2] if search.after else None
    found, looked, read, count, trips = list[Record](), 0, 0, 0, 0
    for _ in range(ROUNDS):
        pieces: list[LookedPiece] = yield [ask(after=last, offset=n * MOST) for n in range(LOOKS)]
        looked, count, last = looked + sum(piece.looked for piece in pieces), pieces[0].count, pieces[-1].last
        rows = dict(row for piece in pieces for row in piece.rows)
        records: list[Record | None] = []
        if rows:
            records = yield from _read(site, list(rows))
        for (id, score), record in zip(rows.items(), records, strict=True):
            if record is not None and matches(record):
                found.append(record)
            if len(found) == PAGE:
                return LookedJobs(Page(found, count, cursor_of(score, id, index)), looked)
        read, trips = read + len(records), trips + (2 if records else 1)
        if last is None or read >= READS or trips >= TRIPS:
            break
    return LookedJobs(Page(found, count, cursor_of(*last, index) if last else None), looked)


def _read(site: DashboardSite, ids: list[str]) -> Steps[list[Record | None]]:
    keys, finder = site.app.client.keys, site.app.jobs.reader
    parts: list[list[Record | None]] = yield [
        produce.read(keys, ids[n : n + READ], finder=finder, lean=True) for n in range(0, len(ids), READ)
    ]
    return [record for part in parts for record in part]
