"""Verbs on many jobs: a confirmation that counts, and the errand that does it. Pages, complete without script."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.admin.documents import errand_document
from headrace.admin.errands import Errands, JobCount, new_id
from headrace.dashboard.dashboard_site import DashboardSite, to, visitor_of
from headrace.dashboard.page_verbs import form_of, note, words_of
from headrace.dashboard.wording import link, plural
from headrace.errors import HeadraceError
from headrace.model.errand import VERBS, JobFilter

# Above so many jobs their number must be typed.
MANY = 100

_FIELDS = ("state", "queue", "task", "key", "cause")


def bulk_links(which: JobFilter) -> list[tuple[str, str]]:
    """The verbs that a list of jobs may offer for all of them, each with the page that asks before it is done."""
    found: list[tuple[str, str]] = []
    facts = {name: getattr(which, name) for name in _FIELDS}
    for verb in VERBS:
        try:
            which.check(verb)
        except HeadraceError:
            continue
        found.append((verb, link("/errands/new", {"verb": verb, **facts})))
    return found


async def errands(site: DashboardSite, request: Request) -> Response:
    """The newest errands. Cost: one round trip."""
    found = await site.read(Errands(site.client).apage())
    return await site.page(
        request, "errands.html", lambda: {"errands": [errand_document(one) for one in found]}, errands=found
    )


async def errand(site: DashboardSite, request: Request) -> Response:
    """How far one has come. Cost: one round trip."""
    one, frame = await asyncio.gather(Errands(site.client).aget(request.path_params["id"]), site.frames.get())
    return await site.page(
        request, "errand.html", lambda: errand_document(one), frame=frame, one=one, tended=bool(frame.live)
    )


def _asked(fields: Any) -> tuple[str, JobFilter]:
    which = JobFilter(*(str(fields.get(name, "")).strip() for name in _FIELDS))
    return str(fields.get("verb", "")), which


async def confirm(site: DashboardSite, request: Request) -> Response:
    """What a verb on many jobs would do, before it does it. Cost: that of a count."""
    verb, which = _asked(request.query_params)
    counted = await site.read(Errands(site.client).acount(verb, which))
    return await site.page(
        request, "errand_confirm.html", lambda: {"verb": verb, "jobs": which.words, "matched": counted.matched},
        verb=verb, which=which, counted=counted, errand=new_id(), must_type=_must_type(verb, counted),
        back=link("/jobs", {name: getattr(which, name) for name in _FIELDS}),
    )  # fmt: skip


def _must_type(verb: str, counted: JobCount) -> bool:
    return counted.matched > MANY or not counted.exact or (verb == "delete" and counted.matched > 1)


async def begin(site: DashboardSite, request: Request) -> Response:
    """Begin what was confirmed: with the count that the visitor saw, typed where there are many."""
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
        one = await site.app.errands.astart(
            verb,
            which,
            who=visitor.name if visitor else "?",
            by="dashboard",
            rate=int(rate),
            total=counted,
            # Of the question: a form that is sent twice begins one errand.
            id=form.get("errand"),
        )
    except HeadraceError as error:
        await note(site, request, (verb, "jobs", ""), words_of(error), scope=which.words)
        raise
    await note(
        site, request, (verb, "jobs", ""), f"errand {one.id} began: {one.words}", count=one.total, scope=which.words
    )
    ended = one.phase == "ended"
    said = f"{one.verb.capitalize()}: {one.words}." if ended else f"Begun: {one.words} so far."
    return to(request, f"/errands/{one.id}", said)
