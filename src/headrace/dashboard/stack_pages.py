"""Stacks on demand: what the runners of a worker, or the one of a job, do at this moment."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from headrace.dashboard.dashboard_site import DashboardSite, to
from headrace.dashboard.page_verbs import note
from headrace.dashboard.wording import plural, quoted
from headrace.errors import HeadraceError
from headrace.model.stacks import RunnerStacks


async def of_worker(site: DashboardSite, request: Request) -> Response:
    """Stacks of all runners of a worker. Cost: some round trips within half a second."""
    name = request.path_params["name"]
    try:
        found = await site.app.workers.astacks(name)
    except HeadraceError as error:
        return await _refused(site, request, ("stacks", "workers", name), str(error))
    return await _page(site, request, ("stacks", "workers", name), found)


async def of_job(site: DashboardSite, request: Request) -> Response:
    """Stacks of the runner of a job that runs; of a runner with several jobs at once, of all its threads."""
    id = request.path_params["id"]
    try:
        record = await site.app.job(id).arefresh()
        if record.state != "running":
            return await _refused(site, request, ("stacks", "jobs", id), f"the job is {record.state}")
        runners = await site.app.workers.astacks(record.owner)
    except HeadraceError as error:
        return await _refused(site, request, ("stacks", "jobs", id), str(error))
    found = [one for one in runners if one.job == id]
    several = [one for one in runners if one.kind in ("thread", "async") and one.job]
    return await _page(site, request, ("stacks", "jobs", id), found or several)


async def _page(
    site: DashboardSite, request: Request, what: tuple[str, str, str], found: Sequence[RunnerStacks]
) -> Response:
    await note(site, request, what, f"looked at {plural(len(found), 'runner')}")
    _, kind, name = what
    frame = await site.frames.get(fresh=True)
    return await site.page(
        request, "stacks.html", list, frame=frame, found=found, back=f"/{kind}/{quoted(name)}", kind=kind
    )


async def _refused(site: DashboardSite, request: Request, what: tuple[str, str, str], why: str) -> Response:
    said = f"Nothing was done: {why}"
    await note(site, request, what, said)
    return to(request, f"/{what[1]}/{quoted(what[2])}", site.redactor.text(said))
