"""Causes: failures with one fingerprint as one row. A look at the newest failures, so that no job pays for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from headrace.dashboard.dashboard_site import DashboardSite
from headrace.dashboard.values_shown import error_line
from headrace.model.fingerprint import cause_id, fingerprint
from headrace.model.job_record import Record
from headrace.model.notation import iso

# Failures of each state that one look takes, the newest ones.
LOOK = 500
# Shown at most.
MOST = 100


@dataclass(frozen=True, slots=True)
class Cause:
    """Failures that have one fingerprint.

    Attributes:
        id: names it, the same on every day.
        task, kind, where: of the fingerprint: the task, the exception or signal, the innermost line of the user's code.
        example: the newest of them; line: type and message of its error.
        number: how many there are among those that were looked at.
        first, last: microseconds: when the oldest and the newest of these ended.
        lost: whether they are quarantined.
    """

    id: str
    task: str
    kind: str
    where: str
    example: Record
    line: str
    number: int
    first: int
    last: int
    lost: bool

    @property
    def name(self) -> str:
        """The last part of the exception's name."""
        return self.kind.rpartition(".")[2]


def causes_of(records: Iterable[Record], site: DashboardSite) -> list[Cause]:
    """Failures by their fingerprints, those with the newest failure first."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(cause_id(record.task, record.error), []).append(record)
    found: list[Cause] = []
    for id, group in groups.items():
        newest = max(group, key=lambda record: record.finished_us)
        kind, where = fingerprint(newest.error)
        first = min(record.finished_us for record in group)
        lost = newest.state == "quarantined"
        line = error_line(newest, site.redactor)
        found.append(
            Cause(id, newest.task, kind or "unknown", where, newest, line, len(group), first, newest.finished_us, lost)
        )
    return sorted(found, key=lambda cause: -cause.last)


def _document(cause: Cause) -> dict[str, Any]:
    return {
        "task": cause.task,
        "type": cause.kind,
        "where": cause.where,
        "error": cause.line,
        "number": cause.number,
        "first": iso(cause.first),
        "last": iso(cause.last),
        "quarantined": cause.lost,
        "example": cause.example.id,
    }


async def causes(site: DashboardSite, request: Request) -> Response:
    """Failures by their causes."""
    task = request.query_params.get("task", "").strip()
    pages = [
        await site.app.jobs.apage(state, limit=LOOK, task=task or None, values=False)
        for state in ("failed", "quarantined")
    ]
    found = causes_of([record for page in pages for record in page.jobs], site)
    order = request.query_params.get("order", "")
    if order == "number":
        found.sort(key=lambda cause: -cause.number)
    most = max((one.number for one in found), default=1)
    return await site.page(
        request, "causes.html",
        lambda: {"looked_at": sum(len(page) for page in pages), "causes": [_document(cause) for cause in found[:MOST]]},
        causes=found[:MOST], task=task, order=order, most=most,
        looked=sum(len(page) for page in pages), total=sum(page.count for page in pages),
    )  # fmt: skip
