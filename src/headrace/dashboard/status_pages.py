"""Pages about the whole: overview, queues, tasks, workers, limits, schedules. Each is bounded, whatever is stored.

Pages about the store itself: its server and what is kept in it, and the cached values. Activity: events and acts by
time, as one list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, tzinfo
from typing import Any

import msgspec
from msgspec.structs import asdict
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.admin import documents
from headrace.admin.alarms import Alarms
from headrace.admin.event_log import ActLog
from headrace.admin.job_paging import stream_position
from headrace.admin.jobs import Jobs
from headrace.admin.queues import LoadQuestion
from headrace.admin.workers import named
from headrace.dashboard import figures, needs
from headrace.dashboard.dashboard_site import DashboardSite, name_in
from headrace.dashboard.figures import NORMAL, SPANS, LiveFrame, TimeRange, figures_document, read_frame
from headrace.dashboard.job_pages import Cause, cause_document, newest_causes
from headrace.dashboard.values_shown import duration, link, quoted
from headrace.errors import HeadraceError
from headrace.model.activity import HIGH_SHARE, KINDS, NEWEST, Act, EventRecord, act_of, event_of, newest_act
from headrace.model.notation import iso, zone_of
from headrace.protocol import cache_calls as protocol
from headrace.protocol import operations, ticks
from headrace.protocol.index_pages import WALK, Slice, walk
from headrace.protocol.keys import SCHEMA
from headrace.protocol.limit_verbs import read_limits
from headrace.protocol.overviews import QueueFacts, store_load, why
from headrace.protocol.stats_calls import peek
from headrace.protocol.ticks import HISTORY, ScheduleRecord
from headrace.schedules.schedule_handle import schedule_document, tick_document, upcoming
from headrace.schedules.timetables import read_timing, time_of
from headrace.store.client import Steps
from headrace.tasks.bound_task import new_id
from headrace.tasks.limit import Limit

DEATHS = 20  # workers that were lost, as the overview tells of them
# Needs that the overview shows at once, and acts among which it looks for those that acknowledge one.
MOST_NEEDS = 5
ACTS = 500
# Tasks and queues that the overview lists; rows of a page of queues; of one of limits, cached values or schedules.
TOP = 6
PAGE = 100
LISTED = 50
CAUSES = 3  # causes of its own that a task's page shows
LOOK = 1000  # ready jobs that the page of a task looks at, to say why the first one of it waits


def span_of(request: Request) -> TimeRange:
    return SPANS.get(request.query_params.get("span", ""), NORMAL)


async def overview(site: DashboardSite, request: Request) -> Response:
    span, keys = span_of(request), site.client.keys
    frame, course, lines, tasks, server, (lost, alarms, died, acts) = await asyncio.gather(
        site.frames.get(), site.course(span), site.course(span, "queues"), site.table(span),
        site.recent("server", operations.server_info(keys)),
        asyncio.gather(
            site.reading(("lost",), lambda: site.counts.arun(peek(site.counts.keys)), 30),
            site.reading(("alarms",), Alarms(site.client).apage, 10),
            site.recent("deaths", operations.told(keys, "deaths", DEATHS)),
            site.recent("acts", operations.told(keys, "acts", ACTS), 10),
        ),
    )  # fmt: skip
    raised = [one for one in alarms if one.state.raised_us]
    deaths, told = [event_of(*row) for row in died.rows], [act_of(*row) for row in acts.rows]
    found, seen = needs.needs(frame, tasks, server, lost.lost, raised, deaths, told), frame.overview

    def document() -> dict[str, Any]:
        return {
            "now": iso(frame.now),
            "states": seen.states,
            "parked": seen.parked,
            "kept_bytes": seen.bytes,
            "needs": [asdict(need) for need in found],
            "tasks": [figures_document(one) for one in tasks],
            "course": course.document,
        }

    return await site.page(
        request, "overview.html", document, frame=frame, span=span, needs=found,
        open=[need for need in found if not need.by], most=MOST_NEEDS, total=course.total,
        minutes=span.seconds / 60,
        plots=[figures.throughput(course), figures.backlog(lines, lines), figures.waits(course)],
        slow=sorted(tasks, key=lambda one: -one.total)[:TOP],
        lines=_by_need(frame)[:TOP], served=frame.overview.served,
    )  # fmt: skip


async def queues(site: DashboardSite, request: Request) -> Response:
    span, after = span_of(request), request.query_params.get("after")
    # How many jobs of each queue run now is the load.
    frame, table, load = await asyncio.gather(
        site.frames.get(),
        site.table(span, "queues"),
        site.recent("load", store_load(site.client.keys)),
    )
    counted = {one.name: one for one in table}
    found = _by_need(frame) if after is None else [one for one in frame.queues if one.name > after]
    rows = found[:PAGE]
    by_name = "" if len(found) <= PAGE else rows[-1].name if after is not None else ""
    return await site.page(
        request, "queues.html",
        lambda: {"now": iso(frame.now), "queues": [_queue_document(one, frame) for one in rows]},
        frame=frame, rows=rows, figures=counted, span=span, count=len(frame.queues),
        served=frame.overview.served, named=after is not None, more=len(found) > PAGE, after=by_name,
        # Seconds until the jobs of a queue have started, as many at once as run now.
        drains={
            one.name: one.size * counted[one.name].mean / running
            for one in rows if one.name in counted and (running := load.running.of(one.name))
        },
    )  # fmt: skip


def _queue_document(queue: QueueFacts, frame: LiveFrame) -> dict[str, Any]:
    return documents.queue_document(queue, frame.now, frame.overview.served[queue.name])


def _by_need(frame: LiveFrame) -> list[QueueFacts]:
    return sorted(frame.queues, key=lambda one: (not one.size, -frame.waited(one), -one.size, one.name))


async def queue(site: DashboardSite, request: Request) -> Response:
    name, span = name_in(request, "queue"), span_of(request)
    ask = LoadQuestion(site.client.keys, site.app.stats, name, 30)
    frame, course, lines, _, seen, page = await asyncio.gather(
        site.frames.get(), site.course(span, "queues", name), site.course(span, "queues"),
        site.counts.adrive(ask.of_stats()), site.client.adrive(ask.of_store()),
        Jobs(site.client, site.app.tasks).apage("ready", queue=name, limit=10, order="asc", values=False),
    )  # fmt: skip
    load = ask.answer(seen)
    found = next((one for one in frame.queues if one.name == name), QueueFacts(name, 0, False, 0, 0))
    waits = await _why_it_waits(site, page.rows[0].id, "its next job") if page.rows else None
    # Who paused it, and when: its own record tells only why.
    acts = await ActLog(site.client).apage(limit=NEWEST) if found.paused else ()
    pause = newest_act(acts, "pause", "queues", name)
    return await site.page(
        request, "queue.html",
        lambda: {
            **_queue_document(found, frame), "running": load.running, "drain": load.drain,
            "next": [documents.job_summary(job) for job in page.rows], "waits": str(waits) if waits else None,
            "course": course.document,
        },
        frame=frame, queue=found, load=load, course=course,
        pause=pause, span=span, waits=waits,
        plots=[figures.backlog(course, lines), figures.throughput(course), figures.waits(course)],
        next_jobs=page.rows,
        workers=[worker for worker in frame.live if name in worker.queues],
    )  # fmt: skip


async def _why_it_waits(site: DashboardSite, id: str, name: str) -> needs.WhyShown:
    return needs.why_of(await site.client.arun(why(site.client.keys, id)), name, f"/jobs/{id}")


async def _causes_of(site: DashboardSite, name: str, failed: int) -> Sequence[Cause]:
    return (await newest_causes(site, name, limit=CAUSES))[0] if failed else ()


async def _first_of(site: DashboardSite, frame: LiveFrame, name: str) -> needs.WhyShown | None:
    """Why the first job of a task waits; None where none is found. Cost: two round trips where jobs wait."""
    lines = sorted((one for one in frame.queues if one.size), key=lambda one: -one.size)
    places = [f"parked:{name}"] * bool(frame.overview.parked.get(name)) + [f"ready:{one.name}" for one in lines]
    if not places:
        return None
    found = await site.client.arun(walk(site.client.keys, places[:WALK], Slice(1, desc=False), looks=LOOK, task=name))
    return await _why_it_waits(site, found.rows[0][0], "its next job") if found.rows else None


async def tasks(site: DashboardSite, request: Request) -> Response:
    span = span_of(request)
    frame, table, (newest, _) = await asyncio.gather(site.frames.get(), site.table(span), newest_causes(site, each=1))
    rows = sorted(table, key=lambda one: -one.total)
    # Of each task the cause that came last: those before it are overwritten.
    causes = {cause.facts.task: cause for cause in reversed(newest)}
    last = {name: cause_document(cause) for name, cause in causes.items()}
    known = {one.name for one in rows}
    idle = [name for name in {**site.app.tasks, **frame.overview.parked} if name not in known]
    return await site.page(
        request, "tasks.html",
        lambda: {
            "tasks": [figures_document(one) | {"last_cause": last.get(one.name)} for one in rows],
            "parked": frame.overview.parked,
        },
        frame=frame, rows=rows, idle=sorted(idle)[:TOP * 20], span=span,
        causes=causes, busiest=max((one.total for one in rows), default=0.0) or 1.0,
    )  # fmt: skip


async def task(site: DashboardSite, request: Request) -> Response:
    name, span = name_in(request, "task"), span_of(request)
    frame, course = await asyncio.gather(site.frames.get(), site.course(span, "tasks", name))
    causes, waits = await asyncio.gather(_causes_of(site, name, course.total.failed), _first_of(site, frame, name))
    fails = needs.why_task(name, course.total, causes[0].line if causes else "", HIGH_SHARE)
    plots = [figures.throughput(course), figures.waits(course, "run", "Run"), figures.waits(course)]
    return await site.page(
        request, "task.html",
        lambda: {
            **figures_document(course.total), "parked": frame.overview.parked.get(name, 0),
            "waits": str(waits) if waits else None, "course": course.document,
        },
        frame=frame, name=name, course=course, span=span, plots=plots,
        parked=frame.overview.parked.get(name, 0), causes=causes, whys=[fails, waits],
    )  # fmt: skip


async def workers(site: DashboardSite, request: Request) -> Response:
    frame = await site.client.adrive(read_frame(site.client.keys, details=True))
    found = frame.live + frame.overview.silent
    return await site.page(
        request, "workers.html",
        lambda: {"now": iso(frame.now), "workers": [documents.worker_document(one, frame.now) for one in found]},
        frame=frame, found=found,
    )  # fmt: skip


async def worker(site: DashboardSite, request: Request) -> Response:
    frame = await site.client.adrive(read_frame(site.client.keys, details=True))
    found = named(frame.overview.workers, request.path_params["name"])
    return await site.page(
        request, "worker.html",
        lambda: {
            **documents.worker_document(found, frame.now),
            "runner_facts": [documents.runner_document(one, frame.now) for one in found.runners],
        },
        frame=frame, title=f"{found.place} · Workers", worker=found, why=needs.why_worker(frame, found),
    )  # fmt: skip


VALUES = 100  # values of a limit that its page shows


async def limits(site: DashboardSite, request: Request) -> Response:
    after = request.query_params.get("after", "")
    page = await site.read(site.client.arun(read_limits(site.client.keys, (), after, LISTED)))
    return await site.page(
        request, "limits.html",
        lambda: {"limits": [documents.limit_document(one) for one in page.rows], "next": page.next},
        rows=page.rows, count=page.count, after=after, numbers=documents.limit_numbers,
        more=link("/limits", {"after": page.next}) if page.next else "",
    )  # fmt: skip


async def limit(site: DashboardSite, request: Request) -> Response:
    name = name_in(request, "limit")
    page = await site.read(Limit(site.client, name).avalues(VALUES))
    whole, rows = page.rows[0], page.rows[1:]
    waits = needs.why_limit(whole, rows)
    has = sorted(which.partition(":")[::2] for which, found in page.limited.items() if name in found)
    return await site.page(
        request, "limit.html",
        lambda: {
            **documents.limit_document(whole), "tasks_and_queues": [":".join(one) for one in has],
            "values": [documents.limit_document(one) for one in rows], "waits": waits.text if waits else None,
        },
        waits=waits, one=whole, rows=rows, has=has, most=VALUES,
        numbers=documents.limit_numbers,
    )  # fmt: skip


LONGEST = 3  # queues that a full store's page offers to empty


async def store(site: DashboardSite, request: Request) -> Response:
    asked = operations.server_info(site.client.keys)
    frame, server = await asyncio.gather(site.frames.get(), site.recent("server", asked))
    settings, states = site.app.settings, frame.overview.states
    finished = {name: states.get(name, 0) for name in ("succeeded", "failed", "cancelled", "quarantined")}

    def document() -> dict[str, Any]:
        return {
            "server": None if server is None else {**server.info, "full": server.full},
            "schema": SCHEMA,
            "kept": {"finished": finished, "bytes": frame.overview.bytes},
            "caps": {"finished": settings.max_finished, "bytes": settings.max_finished_bytes},
        }

    return await site.page(
        request, "store.html", document, frame=frame, server=server, schema=SCHEMA, finished=finished,
        longest=sorted((one for one in frame.queues if one.size), key=lambda one: -one.size)[:LONGEST],
        need=needs.want_of_room(server), kept=sum(finished.values()), settings=settings,
        url=site.redactor.text(site.app.client.url()),
    )  # fmt: skip


async def cache(site: DashboardSite, request: Request) -> Response:
    tag, after = (request.query_params.get(name, "").strip() for name in ("tag", "after"))
    if after and not after.partition("~")[0].isdecimal():
        raise HTTPException(400, f"after={after[:40]!r} is not the `next` of a page.")
    page = await site.read(site.client.arun(protocol.page(site.client.keys, tag, after, LISTED)))

    def document() -> dict[str, Any]:
        values = [{"name": one.name, "ends": iso(one.end), "bytes": one.size, "tags": one.tags} for one in page.rows]
        return {"values": values, "count": page.count, "next": page.next}

    more = link("/cache", {"tag": tag, "after": page.next}) if page.next else ""
    return await site.page(request, "cache.html", document, page=page, tag=tag, after=after, more=more)


COMING = 5  # times to come that the page of a schedule shows
SPARKS = 12  # ticks that the list draws of each schedule
UNFOLDED = 10  # ticks that the page of a schedule shows at once; the others are folded


class ScheduleRow(msgspec.Struct, frozen=True):
    """A schedule of the list.

    Attributes:
        times, zone: when it ticks; a cron expression with its time zone, or an interval without one.
        due: when its next job is due, microseconds; 0: none is.
    """

    record: ScheduleRecord
    times: str
    zone: str
    due: int


def row_of(record: ScheduleRecord) -> ScheduleRow:
    timing = read_timing(record.about)
    times = "cannot be read" if timing is None else timing.cron or f"every {duration(timing.step / 1e6)}"
    zone = timing.zone if timing is not None and timing.cron else ""
    due = record.ticks[0][1] if record.ticks and record.state == "active" else 0
    return ScheduleRow(record, times, zone, due)


async def schedules(site: DashboardSite, request: Request) -> Response:
    after = request.query_params.get("after", "")
    page = await site.read(site.client.arun(ticks.read_schedules(site.client.keys, (), after, LISTED, ticks=SPARKS)))
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
        history=record.last[::-1], shown=UNFOLDED, asked=new_id(site.client.keys.shard),
    )  # fmt: skip


def _coming(record: ScheduleRecord, now: int) -> tuple[Sequence[tuple[int, str]], str]:
    """The next times, each as its zone has it, and why no more than the stored ones are known."""
    timing, problem = read_timing(record.about), ""
    zone: tzinfo = UTC
    try:
        zone = zone_of(timing.zone if timing is not None else "UTC")
        times = upcoming(record, now, COMING)
    except (HeadraceError, ValueError) as error:
        # The next ones are stored: they are known where nothing can be reckoned.
        times, problem = [time_of(due) for _, due in record.ticks[:COMING]], str(error)
    return [(round(at.timestamp() * 1e6), f"{at.astimezone(zone):%a %d %b %H:%M:%S %Z}") for at in times], problem


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
        at: when it was, microseconds.
        word, tone: what happened, and ``bad``, ``warn`` or empty.
        name, path: what it happened to, and its page below the dashboard's root; empty for none.
        who: who acted; empty for an event.
        text: what else is known.
    """

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
    return ActivityRow(event.at_us, event.kind.replace("_", " "), tone, name, path, "", text)


def row_of_act(act: Act) -> ActivityRow:
    single = act.name and act.count <= 1 and act.kind in ("jobs", "queues", "workflows", "schedules")
    path = f"/{act.kind}/{quoted(act.name)}" if single else ""
    of = act.name or act.scope or act.kind
    many = f" ({act.count:,})" if act.count > 1 else ""
    tone = "warn" if act.refused else ""
    return ActivityRow(act.at_us, f"{act.verb} {act.kind}", tone, of + many, path, f"{act.who}, {act.by}", act.reply)


def _read(site: DashboardSite, show: str, after: str) -> Steps[tuple[list[Act | EventRecord], str]]:
    keys = site.client.keys
    wanted = [operations.told(keys, "acts", LISTED, after)] if show in ("", "acts") else []
    if show != "acts":
        wanted.append(operations.told(keys, "events", LISTED, after, kinds=GROUPS.get(show, ())))
    pieces: list[operations.StreamPiece] = yield wanted
    acts = [act_of(*row) for row in pieces[0].rows] if show in ("", "acts") else []
    events = [event_of(*row) for row in pieces[-1].rows] if show != "acts" else []
    both: list[Act | EventRecord] = sorted([*acts, *events], key=lambda one: _order(one.id), reverse=True)
    # Beyond where the shorter of two streams was cut off, the list would have gaps.
    ends = [piece.last for piece in pieces if piece.last]
    floor = max(ends, key=_order) if ends else ""
    whole = [one for one in both if not floor or _order(one.id) >= _order(floor)]
    # An act and an event may have one id, by which the next page begins.
    shown = [one for n, one in enumerate(whole) if n < LISTED or one.id == whole[LISTED - 1].id]
    if len(shown) == len(both) and not ends:
        return shown, ""
    return shown, shown[-1].id if len(shown) >= LISTED else floor


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

    def line(one: Act | EventRecord) -> dict[str, Any]:
        return documents.act_document(one) if isinstance(one, Act) else documents.event_document(one)

    return await site.page(
        request, "activity.html", lambda: {"activity": [line(one) for one in found], "next": following or None},
        rows=rows, show=show, after=after, following=following, shows=SHOWN,
    )  # fmt: skip
