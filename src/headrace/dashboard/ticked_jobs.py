"""Verbs on the jobs that are ticked in a list: a page that asks, then the verb, each job as one of its own would be.

Bulk operations: a confirmation that counts, and the job that does it. Pages, complete without script.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.admin.bulk_operations import BulkOperations, JobCount
from headrace.admin.documents import bulk_document
from headrace.admin.jobs import JobReply
from headrace.dashboard.dashboard_site import DashboardSite, to, visitor_of
from headrace.dashboard.page_verbs import ask_first, fields_of, form_of, note, note_and_refresh, words_of
from headrace.dashboard.values_shown import link, plural
from headrace.errors import HeadraceError, JobNotFound
from headrace.model.ids import flow_of, is_node
from headrace.model.job_record import Record
from headrace.protocol import produce
from headrace.protocol.operations import VERBS, JobFilter
from headrace.tasks.bound_task import new_id
from headrace.tasks.edited_job import check_id

# Rows that a form may tick: those of a page.
MOST = 50

_ENDED = ("retry", "delete")
_WAITING = ("cancel", "delete")
# Verbs that a list of jobs of a state offers for those that are ticked.
TICKED: Mapping[str, Sequence[str]] = {
    "failed": _ENDED, "quarantined": _ENDED, "cancelled": _ENDED, "succeeded": _ENDED, "scheduled": _WAITING,
    "ready": _WAITING, "parked": _WAITING, "blocked": ("cancel",), "running": ("cancel",),
}  # fmt: skip
# What each does, before it is done.
NEVER = " This cannot be undone."
MEANS: Mapping[str, str] = {
    "retry": "They run again, with the same arguments and fresh budgets.",
    "cancel": "Those that wait end as cancelled; those that run are asked to stop, and killed if they do not.",
    "delete": f"They leave with their arguments, results and logs.{NEVER}",
}


async def act(site: DashboardSite, request: Request) -> Response:
    """Do a verb on ticked jobs, and show their list again; unless it is sure, ask with a page that names them."""
    verb = request.path_params["verb"]
    if verb not in MEANS:
        raise HTTPException(404, "There is no such verb.")
    fields = await fields_of(request)
    form = dict(fields)
    ids = list(dict.fromkeys(value for name, value in fields if name == "id"))
    # To nothing but a list of jobs.
    back = f"/jobs?{form['list']}" if form.get("list") else "/jobs"
    if not 0 < len(ids) <= MOST:
        raise HTTPException(400, f"Nothing was done: tick between one and {MOST} jobs.")
    # Nodes refuse: the page that asks has a button for their workflows.
    if form.get("sure") != "1" or (verb != "cancel" and any(map(is_node, ids))):
        return await _ask(site, request, verb, ids, back)
    try:
        replies = await site.app.jobs.aapply(verb, ids)
    except HeadraceError as error:
        said = words_of(error)
    else:
        said = said_of(replies)
    what = (verb, "jobs", ids[0] if len(ids) == 1 else "")
    await note_and_refresh(site, request, what, said, count=len(ids), scope=f"ticked: {' '.join(ids)}")
    return to(request, back, site.redactor.text(said))


def said_of(replies: Sequence[JobReply]) -> str:
    parts = [_many(number, words) for words, number in Counter(one.words for one in replies if one.done).items()]
    refused = [one for one in replies if not one.done]
    if refused:
        first = refused[0]
        why = first.words if first.error is not None else f"job {first.id} {first.words}"
        parts.append(f"{len(refused):,} refused ({why})")
    return f"{', '.join(parts)}."


def _many(number: int, words: str) -> str:
    if number == 1:
        return f"1 job {words}"
    return f"{number:,} jobs " + words.replace("is ", "are ").replace("was ", "were ")


async def _ask(site: DashboardSite, request: Request, verb: str, ids: list[str], back: str) -> Response:
    """The page that asks. Cost: one round trip."""
    for id in ids:
        try:
            check_id(id)
        except JobNotFound as error:
            raise HTTPException(400, f"Nothing was done: {error}") from None
    found: list[Record | None] = await site.app.client.arun(produce.read(site.app.client.keys, ids, lean=True))
    rows = list(zip(ids, found, strict=True))
    nodes = [] if verb == "cancel" else [id for id in ids if is_node(id)]
    left = [row for row in rows if row[0] not in nodes]
    goes = "which go on from what failed" if verb == "retry" else "which are deleted as a whole"
    return await ask_first(
        site, request, verb, f"{verb.capitalize()} {plural(len(left), 'job')}?", [MEANS[verb]] if left else [],
        f"/jobs/ticked/act/{verb}", back,
        [*(("id", id) for id, _ in left), ("list", back.partition("?")[2]), ("sure", 1)], rows=left,
        flows=Counter(map(flow_of, nodes)), note=f"{_nodes(len(nodes), 'ticked')}, {goes}." if nodes else "",
        **({} if left else {"button": ""}),
    )  # fmt: skip


def _nodes(number: int, which: str) -> str:
    return f"{plural(number, f'{which} job')} {'is a node' if number == 1 else 'are nodes'} of workflows"


# Above this many jobs their number must be typed.
MANY = 100

_FIELDS = ("state", "queue", "task", "key", "cause")


def bulk_links(which: JobFilter) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    facts = {name: getattr(which, name) for name in _FIELDS}
    for verb in VERBS:
        try:
            which.check(verb)
        except HeadraceError:
            continue
        found.append((verb, link("/bulk/new", {"verb": verb, **facts})))
    return found


async def operations(site: DashboardSite, request: Request) -> Response:
    found = await site.read(BulkOperations(site.client).apage())
    return await site.page(
        request,
        "bulks.html",
        lambda: {"operations": [bulk_document(one) for one in found]},
        title="Bulk operations",
        operations=found,
    )


async def operation(site: DashboardSite, request: Request) -> Response:
    one, frame = await asyncio.gather(BulkOperations(site.client).aget(request.path_params["id"]), site.frames.get())
    return await site.page(
        request,
        "bulk.html",
        lambda: bulk_document(one),
        frame=frame,
        title=f"{one.request.verb} many",
        one=one,
        tended=bool(frame.live),
    )


def _asked(fields: Any) -> tuple[str, JobFilter]:
    which = JobFilter(*(str(fields.get(name, "")).strip() for name in _FIELDS))
    return str(fields.get("verb", "")), which


async def confirm(site: DashboardSite, request: Request) -> Response:
    """What a verb on many jobs would do, before it does it. Cost: that of a count."""
    verb, which = _asked(request.query_params)
    counted = await site.read(BulkOperations(site.client).acount(verb, which))
    facts = {name: value for name in _FIELDS if (value := getattr(which, name))}
    about = "" if counted.exact else "at least "
    looked = "" if counted.exact else f": {counted.matched:,} of the {counted.looked:,} that were looked at"
    means = MEANS[verb].removesuffix(NEVER)
    texts = [
        f"Jobs that match {site.redactor.text(which.words)}{looked}.",
        f"{means} Jobs that come later are left alone.{NEVER}",
    ]
    note = f"{_nodes(counted.nodes, 'further')}, which this verb leaves alone." if counted.nodes else ""
    sent = {
        **facts, "operation": new_id(site.client.keys.shard), "verb": verb, "count": counted.matched,
        "exact": 1 if counted.exact else 0,
    }  # fmt: skip
    return await ask_first(
        site, request, verb, f"{verb.capitalize()} {about}{plural(counted.matched, 'job')}?", texts, "/bulk",
        link("/jobs", facts), sent.items(), note=note, rate=verb == "retry",
        typed_number=counted.matched if _must_type(verb, counted) else 0, **({} if counted.matched else {"button": ""}),
    )  # fmt: skip


def _must_type(verb: str, counted: JobCount) -> bool:
    return counted.matched > MANY or not counted.exact or (verb == "delete" and counted.matched > 1)


async def begin(site: DashboardSite, request: Request) -> Response:
    form = await form_of(request)
    verb, which = _asked(form)
    count, rate = form.get("count", ""), form.get("rate", "").strip() or "0"
    if not (count.isdecimal() and rate.isdecimal() and len(count) < 15 and len(rate) < 9):
        raise HTTPException(400, "Nothing was done: the number of jobs and the rate must be whole numbers.")
    counted = JobCount(int(count), int(count), form.get("exact") == "1")
    if _must_type(verb, counted) and form.get("typed", "").strip().replace(",", "") != count:
        raise HTTPException(
            400, f"Nothing was done: type the number, {count}, to {verb} {plural(counted.matched, 'job')}."
        )
    visitor = visitor_of(request)
    try:
        one = await site.app.bulk.astart(
            verb,
            which,
            who=visitor.name if visitor else "?",
            by="dashboard",
            rate=int(rate),
            total=counted,
            # Of the question: a form that is sent twice starts one.
            id=form.get("operation"),
        )
    except HeadraceError as error:
        await note(site, request, (verb, "jobs", ""), words_of(error), scope=which.words)
        raise
    await note(
        site, request, (verb, "jobs", ""), f"bulk operation {one.id} began", count=counted.matched, scope=which.words
    )
    return to(request, f"/bulk/{one.id}", "Begun: a worker does it.")
