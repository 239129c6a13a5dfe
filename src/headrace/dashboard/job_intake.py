"""``POST /v1/jobs``: programs without a driver of the store send jobs, one a request, as JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace.dashboard.dashboard_site import DashboardSite
from headrace.dashboard.page_verbs import body_of
from headrace.errors import (
    DuplicateJob,
    HeadraceError,
    LaneFull,
    PayloadTooLarge,
    ServerError,
    SettingsError,
    StoreFull,
    StoreUnavailable,
)

PATH = "/v1/jobs"
# Bytes of a request besides its arguments.
_MORE = 16_384
# What a refusal is to a program that speaks HTTP; all others are errors of the request.
_STATUS: tuple[tuple[type[HeadraceError], int], ...] = (
    (PayloadTooLarge, 413), (DuplicateJob, 409), (LaneFull, 429), (StoreFull, 507),
    # The job is good: a program may send it again.
    (ServerError, 503), (SettingsError, 503),
)  # fmt: skip


class JobRequest(msgspec.Struct, forbid_unknown_fields=True):
    """One job to store.

    Attributes:
        task: its name.
        args, kwargs: its arguments, by position and by name; they stay JSON.
        options: those of ``app.by_name(...)``: times in seconds, ``at`` as ISO 8601 with a zone.
    """

    task: str
    args: msgspec.Raw = msgspec.Raw(b"[]")
    kwargs: msgspec.Raw = msgspec.Raw(b"{}")
    options: dict[str, Any] = {}


async def take(site: DashboardSite, request: Request) -> Response:
    """Store one job: 201, or 200 where its ``request_id`` or name had made one before. Cost: one round trip."""
    body = await body_of(request, site.app.settings.max_payload + _MORE)
    try:
        asked = msgspec.json.decode(body, type=JobRequest)
        if isinstance(at := asked.options.get("at"), str):
            asked.options["at"] = datetime.fromisoformat(at)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return JSONResponse({"error": f"this is no job: {error}"}, 400)
    try:
        job = await site.app.by_name(asked.task, **asked.options).aenqueue_json(bytes(asked.args), bytes(asked.kwargs))
    except StoreUnavailable:
        raise
    except HeadraceError as error:
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 400)
        return JSONResponse({"error": str(error), "type": type(error).__name__}, status)
    return JSONResponse({"id": job.id, "task": job.task, "fresh": job.fresh}, 201 if job.fresh else 200)
