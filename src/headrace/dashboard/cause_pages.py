"""Causes: failures with one fingerprint as one row. A look at the newest failures, so that no job pays for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.dashboard.dashboard_site import DashboardSite
from headrace.dashboard.values_shown import error_line, shared_values
from headrace.model.job_record import Record, cause_id, fingerprint
from headrace.model.notation import iso
from headrace.protocol import index_pages
from headrace.store.client import Steps

# Failures of each state that one look takes, the newest ones; for one task; and those that one script reads.
LOOK, LOOK_FOR_TASK, PIECE = 500, 1000, 100
# Shown at most; failures of a cause that are compared, and from how many on what they share tells something.
MOST, COMPARED, FEW = 100, 20, 3


class Cause(msgspec.Struct, frozen=True):
    """Failures that have one fingerprint.

    Attributes:
        id: names it, the same on every day.
        task, kind, where: of the fingerprint: the task, the exception or signal, the innermost line of the user's code.
        example: the newest of them; line: type and message of its error.
        number: how many there are among those that were looked at.
        first, last: microseconds: when the oldest and the newest of these ended.
        lost: whether they are quarantined.
        shared: arguments and headers that the newest of them have in common; compared: so many.
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
    shared: Sequence[tuple[str, str]]
    compared: int


def causes_of(records: Iterable[Record], site: DashboardSite) -> list[Cause]:
    """Failures by their fingerprints, those with the newest failure first."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(cause_id(record.task, record.error), []).append(record)
    found: list[Cause] = []
    for id, group in groups.items():
        group.sort(key=lambda record: -record.finished_us)
        newest, alike = group[0], group[:COMPARED]
        kind, where = fingerprint(newest.error)
        found.append(
            Cause(
                id, newest.task, kind or "unknown", where, newest, error_line(newest, site.redactor), len(group),
                group[-1].finished_us, newest.finished_us, newest.state == "quarantined",
                shared_values(alike, site.redactor) if len(alike) >= FEW else [], len(alike),
            )
        )  # fmt: skip
    return sorted(found, key=lambda cause: -cause.last)


def _document(cause: Cause) -> dict[str, Any]:
    return {
        "id": cause.id,
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


class Failures(msgspec.Struct, frozen=True):
    """The newest failures, and how many there are in all."""

    records: list[Record]
    count: int


def _newest(site: DashboardSite, look: int) -> Steps[Failures]:
    states = ("failed", "quarantined")
    pages: list[index_pages.IndexPage] = yield [
        index_pages.page(site.client.keys, state, PIECE, offset=first, values=False, finder=site.app.jobs.reader)
        for state in states
        for first in range(0, look, PIECE)
    ]
    # What fails between two scripts moves the others: one may be in two pieces.
    found = {record.id: record for page in pages for record in page.records if record is not None}
    return Failures(list(found.values()), sum(page.count for page in pages[:: look // PIECE]))


async def newest_failures(site: DashboardSite, look: int) -> Failures:
    """The newest failures, so many of each state, shared by all tabs. Cost: one round trip."""
    return await site.reading(("failures", str(look)), lambda: site.client.adrive(_newest(site, look)))


async def causes(site: DashboardSite, request: Request) -> Response:
    """Failures by their causes. Cost: one round trip, that all tabs share."""
    task = request.query_params.get("task", "").strip()
    failures = await site.read(newest_failures(site, LOOK_FOR_TASK if task else LOOK))
    looked = [record for record in failures.records if task in ("", record.task)]
    found = causes_of(looked, site)
    order = request.query_params.get("order", "")
    if order == "number":
        found.sort(key=lambda cause: -cause.number)
    most = max((one.number for one in found), default=1)
    return await site.page(
        request, "causes.html",
        lambda: {"looked_at": len(looked), "causes": [_document(cause) for cause in found[:MOST]]},
        causes=found[:MOST], task=task, order=order, most=most,
        looked=len(looked), seen=len(failures.records), total=failures.count,
    )  # fmt: skip
