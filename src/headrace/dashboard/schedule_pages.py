"""Pages about schedules, the pages of stacks on demand, and the page of the login.

1. :func:`schedules` and :func:`schedule`: all by name, and one with its next times, last ticks and policies.
2. :func:`of_worker` and :func:`of_job`: stacks on demand: of a worker, or of the runner of one job.
3. :func:`login` and :func:`logout`: people come in with a code or a token, and leave.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from datetime import datetime

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.dashboard.dashboard_site import DashboardSite, name_in, to
from headrace.dashboard.page_verbs import form_of, note
from headrace.dashboard.values_shown import duration, link, plural, quoted
from headrace.dashboard.visitors import Role
from headrace.errors import HeadraceError, NotFound
from headrace.model.notation import zone_of
from headrace.model.stacks import RunnerStacks
from headrace.protocol import ticks
from headrace.protocol.ticks import HISTORY, ScheduleRecord, TickRecord
from headrace.schedules.schedule_handle import schedule_document, tick_document, upcoming
from headrace.schedules.timetables import read_timing, time_of
from headrace.tasks.bound_task import new_id

PAGE = 50
COMING = 5  # times to come that the page of a schedule shows
SPARKS = 12  # ticks that the list draws of each schedule
SHOWN = 10  # ticks that the page of a schedule shows at once; the others are folded


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
    after = request.query_params.get("after", "")
    page = await site.read(site.client.arun(ticks.read_schedules(site.client.keys, (), after, PAGE, ticks=SPARKS)))
    return await site.page(
        request, "schedules.html",
        lambda: {"schedules": [schedule_document(record) for record in page.rows], "next": page.next},
        rows=[row_of(record) for record in page.rows], count=page.count, after=after,
        more=link("/schedules", {"after": page.next}) if page.next else "",
    )  # fmt: skip


async def schedule(site: DashboardSite, request: Request) -> Response:
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
        history=record.last[::-1], shown=SHOWN, asked=new_id(site.client.keys.shard),
    )  # fmt: skip


def _coming(record: ScheduleRecord, now: int) -> tuple[Sequence[tuple[int, str]], str]:
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


async def of_worker(site: DashboardSite, request: Request) -> Response:
    name = request.path_params["name"]
    return await _page(site, request, ("stacks", "workers", name), site.app.workers.astacks(name))


async def of_job(site: DashboardSite, request: Request) -> Response:
    id = request.path_params["id"]
    return await _page(site, request, ("stacks", "jobs", id), _stacks_of(site, id))


async def _stacks_of(site: DashboardSite, id: str) -> Sequence[RunnerStacks]:
    record = await site.app.job(id).arefresh()
    if record.state != "running":
        raise NotFound(f"the job is {record.state}")
    runners = await site.app.workers.astacks(record.owner)
    found = [one for one in runners if one.job == id]
    return found or [one for one in runners if one.kind in ("thread", "async") and one.job]


async def _page(
    site: DashboardSite, request: Request, what: tuple[str, str, str], asked: Awaitable[Sequence[RunnerStacks]]
) -> Response:
    _, kind, name = what
    back = f"/{kind}/{quoted(name)}"
    try:
        found = await asked
    except HeadraceError as error:
        said = f"Nothing was done: {error}"
        await note(site, request, what, said)
        return to(request, back, site.redactor.text(said))
    await note(site, request, what, f"looked at {plural(len(found), 'runner')}")
    frame = await site.frames.get(fresh=True)
    return await site.page(request, "stacks.html", list, title="Stacks", frame=frame, found=found, back=back, kind=kind)


log = logging.getLogger("headrace.dashboard")


async def login(site: DashboardSite, request: Request) -> Response:
    """Show the form, or use what it holds. A code in the link is used by the button only: a preview must not use it."""
    assert site.login is not None
    if request.method != "POST":
        return site.bare(request, "login.html", code=request.query_params.get("code", ""), problem="")
    form = await form_of(request)
    role: Role | None = "operator" if site.login.use(form.get("code", "")) else None
    role = role or site.login.role_of(form.get("token", "").strip())
    if role is None or role == "producer":
        if site.login.failed():
            return site.bare(request, "login.html", status=429, code="", problem="Too many failed. Wait a second.")
        log.warning("a log-in from %s failed", request.client.host if request.client else "?")
        if role is not None:
            return site.bare(request, "login.html", status=403, code="", problem="This token is for programs.")
        text = "This link was used or is older than five minutes." if form.get("code") else "This is not the token."
        return site.bare(request, "login.html", status=403, code="", problem=text)
    response = to(request, "/")
    site.login.admit(request, response, role)
    log.info("%s came in from %s", role, request.client.host if request.client else "?")
    return response


async def logout(site: DashboardSite, request: Request) -> Response:
    assert site.login is not None
    response = to(request, "/login")
    site.login.dismiss(request, response)
    return response
