"""Causes: failures with one fingerprint as one row. The store counts each when it is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.dashboard.dashboard_site import DashboardSite
from headrace.dashboard.values_shown import error_line, shared_values
from headrace.model.job_record import Record
from headrace.model.notation import iso
from headrace.protocol.index_pages import CauseFacts, read_causes

# Shown at most, and from how many failures on what they share tells something.
MOST, FEW = 100, 3


class Cause(msgspec.Struct, frozen=True):
    """Failures that have one fingerprint, as a page shows them.

    Attributes:
        facts: what the store counts.
        line: the error of the newest, or of the first where none is kept.
        example: the newest of them that is kept; None: all that the store remembers were retried or deleted.
        shared: arguments and headers that the newest of them have in common; compared: so many.
    """

    facts: CauseFacts
    line: str
    example: Record | None
    shared: Sequence[tuple[str, str]]
    compared: int


def _cause(site: DashboardSite, facts: CauseFacts) -> Cause:
    newest = facts.newest
    example = newest[0] if newest else None
    line = error_line(example, site.redactor) if example is not None else site.redactor.text(facts.line)
    shared = shared_values(newest, site.redactor) if len(newest) >= FEW else []
    return Cause(facts, line, example, shared, len(newest))


async def newest_causes(
    site: DashboardSite, task: str = "", by: str = "last", limit: int = MOST, each: int = 20
) -> tuple[list[Cause], int]:
    """Causes, and how many there are; shared by all tabs. Cost: one round trip."""
    call = read_causes(site.client.keys, task, by=by, limit=limit, each=each, finder=site.app.jobs.reader)
    found = await site.reading(("causes", task, by, str(limit), str(each)), lambda: site.client.arun(call))
    return [_cause(site, facts) for facts in found.causes], found.count


def _document(cause: Cause) -> dict[str, Any]:
    facts = cause.facts
    return {
        "id": facts.id,
        "task": facts.task,
        "type": facts.kind,
        "where": facts.where,
        "error": cause.line,
        "number": facts.number,
        "first": iso(facts.first),
        "last": iso(facts.last),
        "quarantined": facts.lost,
        "example": cause.example.id if cause.example is not None else None,
    }


async def causes(site: DashboardSite, request: Request) -> Response:
    """Failures by their causes. Cost: one round trip, that all tabs share."""
    task = request.query_params.get("task", "").strip()
    order = request.query_params.get("order", "")
    found, count = await site.read(newest_causes(site, task, "number" if order == "number" else "last"))
    return await site.page(
        request, "causes.html", lambda: {"count": count, "causes": [_document(cause) for cause in found]},
        causes=found, task=task, order=order, most=max((one.facts.number for one in found), default=1), count=count,
    )  # fmt: skip
