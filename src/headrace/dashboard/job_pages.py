"""Pages about jobs: lists by state with a bounded search, one job, and causes of failures."""

from __future__ import annotations

import re
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.admin.documents import job_details, job_summary
from headrace.admin.job_paging import LookedJobs, page_of, query_of
from headrace.dashboard.dashboard_site import POLL, DashboardSite, form_wanted, sight_of, to
from headrace.dashboard.job_search import LISTED, JobSearch, search_of, words_of
from headrace.dashboard.ticked_jobs import MEANS, TICKED, bulk_links
from headrace.dashboard.values_shown import (
    WITHHELD,
    Sight,
    arguments,
    arguments_document,
    error_line,
    preview,
    result,
)
from headrace.dashboard.why_shown import why_of
from headrace.model.errand import JobFilter
from headrace.model.headers import TRACE
from headrace.model.ids import LENGTH, flow_of, is_flow, is_node
from headrace.model.job import State
from headrace.model.job_record import Page, Record, cause_id, has_slots
from headrace.protocol import operations, produce
from headrace.protocol.why import why
from headrace.store.client import Steps
from headrace.tasks.edited_job import AGAIN, check_id

# Jobs of a page, and of one as CSV.
PAGE = 50
ROWS = 1000
# Lines of a job's log that its page shows.
LINES = 200

_ID = re.compile(rf"[0-9a-z]{{{LENGTH}}}")
_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*", re.DOTALL)


async def jobs(site: DashboardSite, request: Request) -> Response:
    typed = request.query_params.get("q", "").strip()
    if is_flow(typed) or _ID.fullmatch(typed):
        return to(request, f"/{'workflows' if is_flow(typed) else 'jobs'}/{typed}")
    frame = await site.frames.get()
    search = search_of(request.query_params, frame.overview.states)
    first, sight = not (search.after or search.before), sight_of(site, request)
    # What a poll can tell of is how many jobs are newer: a search and an older page are not repeated for that.
    passes = POLL in request.headers and (search.looks or not first)
    nothing = LookedJobs(Page([], 0, None), 0)
    key = ("jobs", repr(search), sight, form_wanted(request))
    limit = ROWS if form_wanted(request) == "csv" else PAGE
    looked = nothing if passes else await site.reading(key, lambda: _found(site, search, sight, limit), 2)
    found = looked.page
    older = search.older if search.before else search.link(after=found.next) if found.next else ""
    newer = search.link(before=found.next) if search.before and found.next else search.newer
    rows = [(one, preview(one, site.redactor, sight), error_line(one, site.redactor)) for one in found.rows]
    return await site.page(
        request, "jobs.html",
        lambda: {
            "jobs": [job_summary(one) for one in found.rows], "count": found.count, "next": found.next,
            "looked": looked.looked,
        },
        frame=frame, search=search, rows=rows, page=found, listed=LISTED, looked=looked.looked, older=older,
        newer=newer, stands=first and not passes, bulk=_bulk(search),
        ticked=TICKED.get(search.state, ()), means=MEANS, most_rows=ROWS if found.next else 0,
    )  # fmt: skip


def _bulk(search: JobSearch) -> list[tuple[str, str]]:
    if search.text or search.error or search.since or search.until:
        return []
    return bulk_links(JobFilter(search.state, search.queue, search.task, search.key, search.cause))


async def _found(site: DashboardSite, search: JobSearch, sight: Sight, limit: int) -> LookedJobs:
    frame = await site.frames.get()
    wanted = search.text.lower()

    def matches(record: Record) -> bool:
        return search.failed_so(record) and _holds(record, wanted, site, sight)

    # Lists show the names of parameters of tasks that are defined here.
    names = {name for task in site.app.tasks.values() for name in task.signature.parameters.names}
    words = words_of(f"{search.text} {search.error.rpartition('.')[2]}", names)
    query = query_of(
        search.state, search.queue or None, search.task or None, search.key or None, limit,
        search.before or search.after or None, "asc" if search.before else "desc",
        *search.window(frame.now), values=False,
    )  # fmt: skip
    reader, seen = site.app.jobs.reader, frame.overview
    found = await site.client.adrive(
        page_of(site.client, reader, query, seen, words, matches if search.looks else None)
    )
    return LookedJobs(Page(found.page.rows[::-1], found.page.count, found.page.next), 0) if search.before else found


def _holds(record: Record, wanted: str, site: DashboardSite, sight: Sight) -> bool:
    shown = (
        record.id,
        record.task,
        record.key,
        site.redactor.text(record.note),
        preview(record, site.redactor, sight),
        error_line(record, site.redactor),
    )
    return any(wanted in part.lower() for part in shown)


def _read(site: DashboardSite, id: str) -> Steps[tuple[list[Record | None], Any, list[str]]]:
    keys = site.client.keys
    calls: list[Any] = [
        produce.read(keys, [id], finder=site.app.jobs.reader),
        why(keys, id),
        operations.logs(keys, id, LINES),
    ]
    found, told, lines = yield calls
    return found, told, lines


async def job(site: DashboardSite, request: Request) -> Response:
    id = check_id(request.path_params["id"])
    found, told, lines = await site.read(site.client.adrive(_read(site, id)))
    record = found[0]
    if record is None:
        text = f"No job {id} is stored: it never existed, it ended and its retention is over, or the server lost it."
        raise HTTPException(404, text)
    sight = sight_of(site, request)
    waits = None if record.state.final else why_of(told)
    log = [site.redactor.text(line) for line in lines] if sight != "none" else [WITHHELD] if lines else []
    returned = result(record, site.redactor, sight)
    return await site.page(
        request, "job.html",
        lambda: {
            **job_details(record, log), **arguments_document(record, site.redactor, sight),
            **({"result": WITHHELD} if returned and sight == "none" else {}), "waits": str(waits) if waits else None,
        },
        job=record, waits=waits, log=log, arguments=arguments(record, site.redactor, sight), result=returned,
        retryable=retryable(record), again=not has_slots(record.packed_args), again_of=AGAIN,
        movable=record.state in ("scheduled", "ready", "parked"),
        deletable=record.state != "running" and not is_node(record.id),
        flow=flow_of(record.id) if is_node(record.id) else "", trace=trace_of(record),
        cause=cause_id(record.task, record.error) if record.state in ("failed", "quarantined") else "",
    )  # fmt: skip


def trace_of(record: Record) -> str:
    found = _TRACE.fullmatch(record.headers.get(TRACE, ""))
    return found[1] if found else ""


def retryable(record: Record) -> bool:
    return record.state.final and record.state is not State.SKIPPED and not is_node(record.id)
