"""Pages about schedules: all by name, and one with its next times, its last ticks and its policies."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.admin.errands import new_id
from headrace.dashboard.dashboard_site import DashboardSite, name_in
from headrace.dashboard.wording import duration, link
from headrace.errors import HeadraceError
from headrace.model.notation import zone_of
from headrace.model.schedule_record import ScheduleRecord, TickRecord
from headrace.protocol import ticks
from headrace.protocol.ticks import HISTORY
from headrace.schedules.schedule_handle import schedule_document, tick_document, upcoming
from headrace.schedules.timetables import read_timing, time_of

PAGE = 50
# Times to come that the page of a schedule shows.
COMING = 5
# Ticks that it shows at once; the others are folded.
SHOWN = 10


class ScheduleRow(msgspec.Struct, frozen=True):
    """A schedule of the list.

    Attributes:
        times, zone: when it ticks; a cron expression with its time zone, or an interval without one.
        due: when its next job is due, microseconds; 0: none is.
        last: what became of its last tick.
    """

    record: ScheduleRecord
    times: str
    zone: str
    due: int
    last: TickRecord | None


def row_of(record: ScheduleRecord) -> ScheduleRow:
    timing = read_timing(record.about)
    times = "cannot be read" if timing is None else timing.cron or f"every {duration(timing.step / 1e6)}"
    zone = timing.zone if timing is not None and timing.cron else ""
    due = record.ticks[0][1] if record.ticks and record.state == "active" else 0
    return ScheduleRow(record, times, zone, due, record.last[-1] if record.last else None)


async def schedules(site: DashboardSite, request: Request) -> Response:
    """All schedules by name. Cost: one round trip."""
    after = request.query_params.get("after", "")
    page = await site.read(site.client.arun(ticks.read_schedules(site.client.keys, (), after, PAGE, ticks=1)))
    return await site.page(
        request, "schedules.html",
        lambda: {"schedules": [schedule_document(record) for record in page.rows], "next": page.next},
        rows=[row_of(record) for record in page.rows], count=page.count, after=after,
        more=link("/schedules", {"after": page.next}) if page.next else "",
    )  # fmt: skip


async def schedule(site: DashboardSite, request: Request) -> Response:
    """One schedule. Cost: one round trip."""
    name = name_in(request, "schedule")
    page = await site.read(site.client.arun(ticks.read_schedules(site.client.keys, [name], ticks=HISTORY)))
    if not page.rows:
        raise HTTPException(404, f"No schedule {name[:100]!r} is stored.")
    record = page.rows[0]
    coming, problem = _coming(record, page.now)
    return await site.page(
        request, "schedule.html",
        lambda: {**schedule_document(record), "ticks": [tick_document(tick) for tick in record.last[::-1]]},
        row=row_of(record), one=record, coming=coming, problem=problem,
        history=record.last[::-1], shown=SHOWN, asked=new_id(),
    )  # fmt: skip


def _coming(record: ScheduleRecord, now: int) -> tuple[Sequence[tuple[int, str]], str]:
    """When the next jobs are due, each with the time in the schedule's zone; and why there are no more."""
    if record.state == "ended":
        return [], ""
    problem = ""
    try:
        times = upcoming(record, now, COMING)
    except (HeadraceError, ValueError) as error:
        # The next ones are stored: they are known where nothing can be reckoned.
        times, problem = [time_of(due) for _, due in record.ticks[:COMING]], str(error)
    return [(round(time.timestamp() * 1e6), _in_zone(record, time)) for time in times], problem


def _in_zone(record: ScheduleRecord, time: datetime) -> str:
    timing = read_timing(record.about)
    try:
        local = time.astimezone(zone_of(timing.zone if timing is not None else "UTC"))
    except HeadraceError:
        local = time
    return f"{local:%a %d %b %H:%M:%S %Z}"
