"""Pages about limits: all by name, and one with its values: what it lets through, what waits, when it opens.

What operators do to limits: each is a form, done by the application's own verb.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.admin.documents import limit_document, limit_numbers
from headrace.dashboard.dashboard_site import DashboardSite, name_in
from headrace.dashboard.values_shown import cut, link, plural
from headrace.dashboard.why_shown import why_limit
from headrace.model.limit_rules import Concurrency, LimitState, Rate
from headrace.protocol.limit_verbs import read_limits
from headrace.tasks.limit import Limit

PAGE = 50
# Values of a limit that its page shows.
VALUES = 100


def why_it_waits(whole: LimitState, rows: Sequence[LimitState]) -> str:
    closed = [row for row in rows if row.waiting and row.opens != 0]
    if not whole.waiting:
        return ""
    if whole.paused:
        return "the limit is paused: resume it to let its jobs start"
    if whole.opens is None and whole.held is not None:
        return f"as many of its jobs run as it lets run, {whole.held:,}: the next one starts when one of them ends"
    if whole.opens:
        return "its rate is used up: the next job starts when the rate allows it"
    if closed:
        first = closed[0]
        ends = "a job of it must end" if first.opens is None else "its rate is used up"
        number = f"{plural(len(closed), 'value')} {'is' if len(closed) == 1 else 'are'} closed"
        value = cut(first.value or "", 40) or "(none)"
        return f"{number}, the first of them is {value}: {'it is paused' if first.paused else ends}"
    return "the limit is open: their queues and the workers of these decide when they start"


async def limits(site: DashboardSite, request: Request) -> Response:
    after = request.query_params.get("after", "")
    page = await site.read(site.client.arun(read_limits(site.client.keys, (), after, PAGE)))
    return await site.page(
        request, "limits.html",
        lambda: {"limits": [limit_document(one) for one in page.rows], "next": page.next},
        rows=page.rows, count=page.count, after=after, numbers=limit_numbers,
        more=link("/limits", {"after": page.next}) if page.next else "",
    )  # fmt: skip


async def limit(site: DashboardSite, request: Request) -> Response:
    name = name_in(request, "limit")
    page = await site.read(Limit(site.client, name).avalues(VALUES))
    whole, rows = page.rows[0], page.rows[1:]
    has = sorted(which.partition(":")[::2] for which, found in page.limited.items() if name in found)
    return await site.page(
        request, "limit.html",
        lambda: {
            **limit_document(whole), "tasks_and_queues": [":".join(one) for one in has],
            "values": [limit_document(one) for one in rows], "waits": why_it_waits(whole, rows) or None,
        },
        waits=why_limit(whole, why_it_waits(whole, rows)), one=whole, rows=rows, has=has, numbers=limit_numbers,
        most=VALUES,
    )  # fmt: skip


Form = Mapping[str, str]


def number_in(form: Form, field: str) -> float | None:
    """A number of a form; None where its field is empty."""
    text = form.get(field, "").strip()
    try:
        number = float(text) if text else None
    except ValueError:
        number = math.nan
    if number is not None and not math.isfinite(number):
        raise HTTPException(400, f"{text[:40]!r} is not a number.")
    return number


def whole_in(form: Form, field: str) -> int | None:
    number = number_in(form, field)
    if number is not None and not number.is_integer():
        raise HTTPException(400, f"{number:g} is not a whole number.")
    return None if number is None else int(number)


def _of(name: str, form: Form) -> tuple[str, str | None, float | None]:
    value, minutes = form.get("value"), number_in(form, "minutes")
    words = f"Limit {name}" if value is None else f"Value {value or '(none)'} of limit {name}"
    return words, value, None if minutes is None else minutes * 60


async def pause_limit(site: DashboardSite, name: str, form: Form) -> str:
    what, value, seconds = _of(name, form)
    new = await site.app.limits[name].apause(value, seconds)
    end = "until it is resumed" if seconds is None else f"for {seconds / 60:g} min"
    return f"{what} is paused {end}." if new else f"{what} was paused already; now it is so {end}."


async def resume_limit(site: DashboardSite, name: str, form: Form) -> str:
    what, value, _ = _of(name, form)
    return f"{what} goes on." if await site.app.limits[name].aresume(value) else f"{what} was not paused."


async def set_limit(site: DashboardSite, name: str, form: Form) -> str:
    what, value, seconds = _of(name, form)
    starts, per, most = number_in(form, "starts"), number_in(form, "per"), whole_in(form, "most")
    given: list[Rate | Concurrency] = []
    if starts is not None:
        given.append(Rate(int(starts) if starts.is_integer() else starts, 1 if per is None else per))
    if most is not None:
        given.append(Concurrency(most))
    if not given:
        raise HTTPException(400, "Give a number of starts, or of jobs at once.")
    await site.app.limits[name].aset(*given, value=value, duration=seconds)
    end = "until it is unset" if seconds is None else f"for {seconds / 60:g} min"
    return f"{what} has other numbers than code declares, {end}."


async def unset_limit(site: DashboardSite, name: str, form: Form) -> str:
    what, value, _ = _of(name, form)
    changed = await site.app.limits[name].aunset(value)
    return f"{what} is as code declares it." if changed else f"{what} was as code declares it."


LIMIT_ACTS = {"pause": pause_limit, "resume": resume_limit, "set": set_limit, "unset": unset_limit}
