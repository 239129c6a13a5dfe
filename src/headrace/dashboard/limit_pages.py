"""Pages about limits: all by name, and one with its values: what it lets through, what waits, when it opens."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from headrace.admin.limit_documents import limit_document, limit_numbers
from headrace.dashboard.dashboard_site import DashboardSite, name_in
from headrace.dashboard.wording import link
from headrace.protocol.limit_verbs import read_limits
from headrace.tasks.limit import Limit

PAGE = 50
# Values of a limit that its page shows.
VALUES = 100


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
            "values": [limit_document(one) for one in rows],
        },
        one=whole, rows=rows, has=has, numbers=limit_numbers, most=VALUES,
    )  # fmt: skip
