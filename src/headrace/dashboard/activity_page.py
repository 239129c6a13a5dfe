"""Activity: events and acts by time, as one list. One round trip a page.

Causes: failures with one fingerprint as one row. The store counts each when it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.admin.documents import act_document, event_document
from headrace.admin.job_paging import stream_position
from headrace.dashboard.dashboard_site import DashboardSite
from headrace.dashboard.values_shown import error_line, quoted, shared_values
from headrace.model.activity import KINDS, Act, EventRecord, act_of, event_of
from headrace.model.job_record import Record
from headrace.model.notation import iso
from headrace.protocol import operations
from headrace.protocol.index_pages import CauseFacts, read_causes
from headrace.store.client import Steps

PAGE = 50

# What a page is filtered by: a word, and the kinds of events that it shows; acts are no events.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "failures": ("failed", "quarantined", "cause_new", "cause_back", "parked", "workflow_failed", "schedule_missed",
                 "schedule_paused"),
    "workers": ("worker_started", "worker_stopped", "worker_lost"),
    "queues": ("queue_paused", "queue_resumed"),
    "alarms": ("alarm_raised", "alarm_cleared"),
}  # fmt: skip
SHOWN = ("", "acts", "events", *GROUPS)
BAD = frozenset({"failed", "quarantined", "workflow_failed", "worker_lost", "alarm_raised"})
WARNING = frozenset({"parked", "cause_new", "cause_back", "schedule_missed", "schedule_paused", "queue_paused"})


class ActivityRow(msgspec.Struct, frozen=True):
    """One line of the list.

    Attributes:
        id, at: of the event or act; microseconds.
        word, tone: what happened, and ``bad``, ``warn`` or empty.
        name, path: what it happened to, and its page below the dashboard's root; empty for none.
        who: who acted; empty for an event.
        text: what else is known.
    """

    id: str
    at: int
    word: str
    tone: str
    name: str
    path: str
    who: str
    text: str


def row_of_event(event: EventRecord) -> ActivityRow:
    facts = event.facts
    subjects = (
        ("job", "jobs", facts.get("task")), ("workflow", "workflows", facts.get("definition")),
        ("worker", "workers", facts.get("place")), ("schedule", "schedules", ""), ("queue", "queues", ""),
        ("bulk", "bulk", facts.get("verb")),
    )  # fmt: skip
    name, path = "", ""
    for field, folder, shown in subjects:
        if facts.get(field):
            name, path = shown or facts[field], f"/{folder}/{quoted(facts[field])}"
            break
    name = facts.get("alarm", name)
    if facts.get("worker"):
        # It may have left since.
        path = ""
    tone = "bad" if event.kind in BAD else "warn" if event.kind in WARNING else ""
    rule = f"{facts['rule']}: {facts.get('value', '')}" if facts.get("rule") else ""
    text = rule or facts.get("error") or facts.get("why") or facts.get("text") or KINDS.get(event.kind, "")
    if facts.get("count"):
        text = f"{facts['count']} such failures in one minute; {text}"
    return ActivityRow(event.id, event.at_us, event.kind.replace("_", " "), tone, name, path, "", text)


def row_of_act(act: Act) -> ActivityRow:
    single = act.name and act.count <= 1 and act.kind in ("jobs", "queues", "workflows", "schedules")
    path = f"/{act.kind}/{quoted(act.name)}" if single else ""
    of = act.name or act.scope or act.kind
    many = f" ({act.count:,})" if act.count > 1 else ""
    tone = "warn" if act.refused else ""
    return ActivityRow(
        act.id, act.at_us, f"{act.verb} {act.kind}", tone, of + many, path, f"{act.who}, {act.by}", act.reply
    )


def _read(site: DashboardSite, show: str, after: str) -> Steps[tuple[list[Act | EventRecord], str]]:
    keys = site.client.keys
    wanted = [operations.told(keys, "acts", PAGE, after)] if show in ("", "acts") else []
    if show != "acts":
        wanted.append(operations.told(keys, "events", PAGE, after, kinds=GROUPS.get(show, ())))
    pieces: list[operations.StreamPiece] = yield wanted
    acts = [act_of(*row) for row in pieces[0].rows] if show in ("", "acts") else []
    events = [event_of(*row) for row in pieces[-1].rows] if show != "acts" else []
    both: list[Act | EventRecord] = sorted([*acts, *events], key=lambda one: _order(one.id), reverse=True)
    # Beyond where the shorter of two streams was cut off, the list would have gaps.
    ends = [piece.last for piece in pieces if piece.last]
    floor = max(ends, key=_order) if ends else ""
    whole = [one for one in both if not floor or _order(one.id) >= _order(floor)]
    # An act and an event may have one id, by which the next page begins.
    shown = [one for n, one in enumerate(whole) if n < PAGE or one.id == whole[PAGE - 1].id]
    if len(shown) == len(both) and not ends:
        return shown, ""
    return shown, shown[-1].id if len(shown) >= PAGE else floor


def _order(id: str) -> tuple[int, int]:
    first, _, second = id.partition("-")
    return int(first), int(second or 0)


async def activity(site: DashboardSite, request: Request) -> Response:
    asked = request.query_params.get("show", "")
    show = asked if asked in SHOWN else ""
    after = request.query_params.get("after", "")
    stream_position(after or None)
    found, following = await site.read(site.client.adrive(_read(site, show, after)))
    rows = [row_of_act(one) if isinstance(one, Act) else row_of_event(one) for one in found]

    def document() -> dict[str, Any]:
        lines = [act_document(one) if isinstance(one, Act) else event_document(one) for one in found]
        return {"activity": lines, "next": following or None}

    return await site.page(
        request, "activity.html", document, rows=rows, show=show, after=after, following=following,
        shows=SHOWN,
    )  # fmt: skip


# Shown at most, and from how many failures on what they share tells something.
MOST = 100
FEW = 3


class Cause(msgspec.Struct, frozen=True):
    """Failures that have one fingerprint, as a page shows them.

    Attributes:
        facts: what the store counts.
        line: the error of the newest, or of the first where none is kept.
        example: the newest of them that is kept; None: all that the store remembers were retried or deleted.
        shared: arguments and headers that the newest of them have in common; compared: this many.
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
    call = read_causes(site.client.keys, task, by=by, limit=limit, each=each, finder=site.app.jobs.reader)
    found = await site.reading(("causes", task, by, str(limit), str(each)), lambda: site.client.arun(call))
    return [_cause(site, facts) for facts in found.causes], found.count


def cause_document(cause: Cause) -> dict[str, Any]:
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
    task = request.query_params.get("task", "").strip()
    order = request.query_params.get("order", "")
    found, count = await site.read(newest_causes(site, task, "number" if order == "number" else "last"))
    return await site.page(
        request, "causes.html", lambda: {"count": count, "causes": [cause_document(cause) for cause in found]},
        causes=found, task=task, order=order, most=max((one.facts.number for one in found), default=1), count=count,
    )  # fmt: skip
