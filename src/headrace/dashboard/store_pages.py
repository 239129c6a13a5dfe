"""Pages about the store itself: its server and what is kept in it, and the cached values."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import asdict
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.dashboard.attention import want_of_room
from headrace.dashboard.dashboard_site import DashboardSite
from headrace.dashboard.wording import link
from headrace.model.notation import iso
from headrace.protocol import cache_calls as protocol
from headrace.protocol.keys import SCHEMA

# Cached values of a page, and queues that a full store's page offers to empty.
PAGE, LONGEST = 50, 3


async def store(site: DashboardSite, request: Request) -> Response:
    """The server, its memory and durability, and what Headrace keeps there against its caps. Cost: one round trip."""
    frame, server = await asyncio.gather(site.frames.get(), site.server())
    settings, states = site.app.settings, frame.overview.states
    finished = {name: states.get(name, 0) for name in ("succeeded", "failed", "cancelled", "quarantined")}

    def document() -> dict[str, Any]:
        return {
            "server": None if server is None else {**asdict(server), "full": server.full},
            "schema": SCHEMA,
            "kept": {"finished": finished, "bytes": frame.overview.bytes},
            "caps": {"finished": settings.max_finished, "bytes": settings.max_finished_bytes},
        }

    return await site.page(
        request, "store.html", document, frame=frame, server=server, schema=SCHEMA, finished=finished,
        longest=sorted((one for one in frame.queues if one.size), key=lambda one: -one.size)[:LONGEST],
        need=want_of_room(server), kept=sum(finished.values()), settings=settings,
        url=site.redactor.text(site.app.client.url()),
    )  # fmt: skip


async def cache(site: DashboardSite, request: Request) -> Response:
    """Cached values, those that end soonest first; of all, or with a tag. Cost: one round trip."""
    tag, after = (request.query_params.get(name, "").strip() for name in ("tag", "after"))
    if after and not after.partition("~")[0].isdecimal():
        raise HTTPException(400, f"after={after[:40]!r} is not the `next` of a page.")
    page = await site.read(site.client.arun(protocol.page(site.client.keys, tag, after, PAGE)))

    def document() -> dict[str, Any]:
        values = [{"name": one.name, "ends": iso(one.end), "bytes": one.size, "tags": one.tags} for one in page.rows]
        return {"values": values, "count": page.count, "next": page.next}

    more = link("/cache", {"tag": tag, "after": page.next}) if page.next else ""
    return await site.page(request, "cache.html", document, page=page, tag=tag, after=after, more=more)
