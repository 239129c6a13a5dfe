"""Pages about limits: all by name, and one with its values: what it lets through, what waits, when it opens."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from headrace.admin.documents import limit_document, limit_numbers
from headrace.dashboard.dashboard_site import DashboardSite, name_in
from headrace.dashboard.wording import cut, link, plural
from headrace.model.limit_rules import LimitState
from headrace.protocol.limit_verbs import read_limits
from headrace.tasks.limit import Limit

PAGE = 50
# Values of a limit that its page shows.
VALUES = 100


def why_it_waits(whole: LimitState, rows: Sequence[LimitState]) -> str:
    """Why jobs of a limit wait, and what lets them start, as a sentence without a full stop; empty: none waits."""
    closed = [row for row in rows if row.waiting and row.opens != 0]
    if not whole.waiting:
        return ""
    if whole.paused:
        return "the limit is paused: resume it to let its jobs start"
    if whole.opens is None:
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
    """All limits by name. Cost: one round trip."""
    after = request.query_params.get("after", "")
    page = await site.read(site.client.arun(read_limits(site.client.keys, (), after, PAGE)))
    return await site.page(
        request, "limits.html",
        lambda: {"limits": [limit_document(one) for one in page.rows], "next": page.next},
        rows=page.rows, count=page.count, after=after, numbers=limit_numbers,
        more=link("/limits", {"after": page.next}) if page.next else "",
    )  # fmt: skip


async def limit(site: DashboardSite, request: Request) -> Response:
    """One limit, and its values whose jobs wait or that were changed. Cost: one round trip."""
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
        waits=why_it_waits(whole, rows), one=whole, rows=rows, has=has, numbers=limit_numbers, most=VALUES,
    )  # fmt: skip
