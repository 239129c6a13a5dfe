"""Pages about the whole: overview, queues, tasks, workers, statistics. Each is bounded, whatever is stored."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.admin.documents import job_summary, queue_document, runner_document, worker_document
from headrace.admin.jobs import Jobs
from headrace.admin.workers import named
from headrace.dashboard import svg_plots
from headrace.dashboard.attention import needs
from headrace.dashboard.dashboard_site import DashboardSite
from headrace.dashboard.figures import NORMAL, SPANS, TaskFigures, TimeRange, figures_document
from headrace.dashboard.live_frame import LiveFrame, read_frame
from headrace.dashboard.wording import quoted
from headrace.errors import HeadraceError, OptionsError
from headrace.model.notation import iso
from headrace.protocol.operations import QueueFacts

# Tasks and queues that the overview lists.
TOP = 6


def span_of(request: Request) -> TimeRange:
    """The range that a request asks for."""
    return SPANS.get(request.query_params.get("span", ""), NORMAL)


async def overview(site: DashboardSite, request: Request) -> Response:
    """Is it well, what is slow, what needs me."""
    span = span_of(request)
    frame, course, tasks, server, lost, strip = await asyncio.gather(
        site.frames.get(), site.course(span), site.table(span), site.server(), site.lost(), site.pulse()
    )
    found = needs(frame, tasks, server, lost, await site.raised())

    def document() -> dict[str, Any]:
        return {
            **_counts(frame),
            "needs": [asdict(need) for need in found],
            "tasks": [figures_document(one) for one in tasks],
            "course": course.document,
        }

    return await site.page(
        request,
        "overview.html",
        document,
        frame=frame,
        span=span,
        spans=SPANS.values(),
        needs=found,
        total=course.total,
        minutes=course.minutes,
        plots=[svg_plots.throughput(course), svg_plots.waits(course)],
        strip=svg_plots.strip(strip.slots()),
        slow=sorted(tasks, key=lambda one: -one.total)[:TOP],
        lines=sorted(frame.queues, key=lambda one: (-frame.waited(one), -one.size, one.name))[:TOP],
        served=frame.overview.served,
    )


def _counts(frame: LiveFrame) -> dict[str, Any]:
    seen = frame.overview
    return {"now": iso(frame.now), "states": seen.states, "parked": seen.parked, "kept_bytes": seen.bytes}


async def queues(site: DashboardSite, request: Request) -> Response:
    """All queues: what waits in each, for how long, who serves it, and what became of its jobs."""
    span = span_of(request)
    frame, table = await asyncio.gather(site.frames.get(), site.table(span, "queues"))
    figures = {one.name: one for one in table}
    return await site.page(
        request, "queues.html",
        lambda: {"now": iso(frame.now), "queues": [_queue_document(one, frame) for one in _by_need(frame)]},
        frame=frame, rows=_by_need(frame), figures=figures, span=span, spans=SPANS.values(),
        served=frame.overview.served,
    )  # fmt: skip


def _queue_document(queue: QueueFacts, frame: LiveFrame) -> dict[str, Any]:
    return queue_document(queue, frame.now, frame.overview.served[queue.name])


def _by_need(frame: LiveFrame) -> list[QueueFacts]:
    return sorted(frame.queues, key=lambda one: (not one.size, -frame.waited(one), one.name))


async def queue(site: DashboardSite, request: Request) -> Response:
    """One queue."""
    name, span = request.path_params["name"], span_of(request)
    try:
        site.app.queues[name]
    except HeadraceError:
        raise HTTPException(404, f"Nothing can be called {name[:100]!r}.") from None
    frame, course, page = await asyncio.gather(
        site.frames.get(), site.course(span, "queues", name),
        Jobs(site.client, site.app.tasks).apage("ready", queue=name, limit=10, order="asc", values=False),
    )  # fmt: skip
    found = next((one for one in frame.queues if one.name == name), QueueFacts(name, 0, False, 0, 0))
    return await site.page(
        request, "queue.html",
        lambda: {
            **_queue_document(found, frame), "next": [job_summary(job) for job in page.jobs], "course": course.document,
        },
        frame=frame, queue=found, course=course, span=span, spans=SPANS.values(),
        plots=[svg_plots.throughput(course), svg_plots.waits(course)], next_jobs=page.jobs,
        workers=[worker for worker in frame.live if name in worker.queues],
    )  # fmt: skip


async def tasks(site: DashboardSite, request: Request) -> Response:
    """All tasks that ran within a range, those that took most time first."""
    span = span_of(request)
    frame, table = await asyncio.gather(site.frames.get(), site.table(span))
    rows = sorted(table, key=lambda one: -one.total)
    known = {one.name for one in rows}
    idle = [name for name in {**site.app.tasks, **frame.overview.parked} if name not in known]
    return await site.page(
        request, "tasks.html",
        lambda: {"tasks": [figures_document(one) for one in rows], "parked": frame.overview.parked},
        frame=frame, rows=rows, idle=sorted(idle)[:TOP * 20], span=span, spans=SPANS.values(),
        busiest=max((one.total for one in rows), default=0.0) or 1.0,
    )  # fmt: skip


async def task(site: DashboardSite, request: Request) -> Response:
    """One task."""
    name, span = request.path_params["name"], span_of(request)
    try:
        frame, course = await asyncio.gather(site.frames.get(), site.course(span, "tasks", name))
    except OptionsError:
        raise HTTPException(404, f"Nothing can be called {name[:100]!r}.") from None
    plots = [svg_plots.throughput(course), svg_plots.waits(course, "run", "Run"), svg_plots.waits(course)]
    return await site.page(
        request, "task.html",
        lambda: {
            **figures_document(course.total), "parked": frame.overview.parked.get(name, 0), "course": course.document,
        },
        frame=frame, name=name, course=course, span=span, spans=SPANS.values(), plots=plots,
        parked=frame.overview.parked.get(name, 0),
    )  # fmt: skip


async def workers(site: DashboardSite, request: Request) -> Response:
    """All workers that live, and those that fell silent."""
    frame = await read_frame(site.client, details=True)
    return await site.page(
        request, "workers.html",
        lambda: {
            "now": iso(frame.now), "workers": [worker_document(one, frame.now) for one in frame.live + frame.silent]
        },
        frame=frame,
    )  # fmt: skip


async def worker(site: DashboardSite, request: Request) -> Response:
    """One worker and its runners."""
    frame = await read_frame(site.client, details=True)
    try:
        found = named(frame.overview.workers, request.path_params["name"])
    except HeadraceError as error:
        raise HTTPException(404, str(error)) from None
    return await site.page(
        request, "worker.html",
        lambda: {
            **worker_document(found, frame.now),
            "runner_facts": [runner_document(one, frame.now) for one in found.runners],
        },
        frame=frame, worker=found,
    )  # fmt: skip


async def statistics(site: DashboardSite, request: Request) -> Response:
    """The course of a task, a queue or of all, over a range of up to a year."""
    span = span_of(request)
    kind = "queues" if request.query_params.get("kind") == "queues" else "tasks"
    name = request.query_params.get("name", "").strip()
    try:
        course, table = await site.read(asyncio.gather(site.course(span, kind, name), site.table(span, kind)))
    except OptionsError as error:
        raise HTTPException(400, str(error)) from None
    rows: list[TaskFigures] = sorted(table, key=lambda one: -one.started)
    plots = [svg_plots.throughput(course), svg_plots.waits(course), svg_plots.waits(course, "run", "Run")]
    return await site.page(
        request, "statistics.html",
        lambda: {**course.document, "below": [figures_document(one) for one in rows]},
        kind=kind, name=name, rows=rows, plots=plots, course=course, span=span,
        spans=SPANS.values(), more=f"&kind={kind}&name={quoted(name)}",
    )  # fmt: skip
