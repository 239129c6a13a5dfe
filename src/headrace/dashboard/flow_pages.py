"""Pages about workflows: lists by state and definition, and one with its graph and its nodes, in bounded pieces."""

from __future__ import annotations

import asyncio
import graphlib
from collections.abc import Mapping, Sequence

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.admin.documents import node_document, workflow_details, workflow_summary
from headrace.dashboard.dashboard_site import PATIENCE, POLL, DashboardSite, Drawing, base_of, form_wanted, sight_of
from headrace.dashboard.needs import WhyShown, why_of
from headrace.dashboard.page_verbs import ask_first, done, fields_of
from headrace.dashboard.values_shown import WITHHELD, arguments, arguments_document, error_line, link, plural
from headrace.errors import HeadraceError
from headrace.model.ids import number_of
from headrace.model.job import FINAL, State
from headrace.model.workflow import NodeRecord, WorkflowRecord, WorkflowState
from headrace.picture import MOST, View, ViewNode, around, boxes_of, of_nodes, urgency
from headrace.protocol.graph import node_of, read_flows
from headrace.protocol.index_pages import Slice
from headrace.protocol.index_pages import page as index_page
from headrace.protocol.overviews import why
from headrace.schedules.timetables import time_of
from headrace.workflows import verbs
from headrace.workflows.collection import Workflows
from headrace.workflows.verbs import check_id, found

PAGE = 50
# Nodes that a page reads for its graph, and that its table shows.
DRAWN = 500
LISTED = 100
# Rows of the timeline, and states in which a job that has not begun has a bar.
BARS = 40
_WAITS = (State.READY, State.PARKED, State.SCHEDULED)
# States of a node that say why a workflow does not go on, the most telling first.
ACTIVE = (State.PARKED, State.READY, State.SCHEDULED, State.RUNNING, State.STOPPED, State.BLOCKED)
# Of a graph with too many boxes, the part around one job: steps from it, and boxes at most.
STEPS = 2
NEAR = 60


# Verbs that a list of workflows offers, by their state; what each does; and workflows that one press changes at most.
_ENDED = ("retry", "delete")
VERBS: Mapping[str, Sequence[str]] = {
    "failed": _ENDED, "cancelled": ("delete",), "succeeded": ("delete",), "running": ("stop",), "stopped": ("delete",),
}  # fmt: skip
MEANS = {
    "retry": "Their failed jobs line up again.",
    "stop": "Nothing of them starts until they are started again; what runs goes on.",
    "delete": "They leave with all their jobs. This cannot be undone.",
}
MOST_AT_ONCE = 200
MANY = 100  # above this many workflows their number must be typed


async def flows(site: DashboardSite, request: Request) -> Response:
    params = request.query_params
    state, definition = params.get("state", ""), params.get("definition", "").strip()
    if state not in list(WorkflowState):
        state = ""
    page = await site.read(
        Workflows(site.client, tasks=site.app.tasks).apage(
            after=params.get("after") or None, state=state or None, definition=definition or None, limit=PAGE
        )
    )
    more = link("/workflows", {"state": state, "definition": definition, "after": page.next or ""})
    return await site.page(
        request, "workflows.html",
        lambda: {
            "workflows": [workflow_summary(one) for one in page.rows], "count": page.count, "next": page.next,
        },
        page=page, state_asked=state, definition=definition, more=more,
        flow_states=[str(one) for one in WorkflowState], verbs=VERBS.get(state, tuple(MEANS)), means=MEANS,
        alls=[
            (verb, link(f"/workflows/bulk/{verb}", {"state": state, "definition": definition}))
            for verb in VERBS.get(state, ())
        ],
    )  # fmt: skip


async def confirm(site: DashboardSite, request: Request) -> Response:
    """What a verb on all workflows of a filter would do, before it does it. Cost: one round trip."""
    state, definition = (request.query_params.get(name, "") for name in ("state", "definition"))
    verb = request.path_params["verb"]
    if verb not in VERBS.get(state, ()):
        raise HTTPException(404, "There is no such verb.")
    now = (await site.frames.get(fresh=True)).now
    count = await site.app.workflows.acount(state=state, definition=definition or None)
    most = f" This does at most {MOST_AT_ONCE} of them, the newest." if count > MOST_AT_ONCE else ""
    fields = {"all": now, "state": state, "definition": definition, "count": count, "sure": 1}.items()
    return await ask_first(
        site, request, verb, f"{verb.capitalize()} {plural(count, f'{state} workflow')}?", [MEANS[verb] + most],
        f"/workflows/ticked/act/{verb}", "/workflows", fields, typed_number=count if count > MANY else 0,
    )  # fmt: skip


async def act(site: DashboardSite, request: Request) -> Response:
    """Do a verb on ticked workflows, or on those of a filter that were there at the question, one after the other."""
    verb = request.path_params["verb"]
    fields = await fields_of(request)
    form = dict(fields)
    state, definition = form.get("state", ""), form.get("definition", "")
    ids = list(dict.fromkeys(value for name, value in fields if name == "id"))
    until, count = form.get("all", ""), form.get("count", "")
    if verb not in MEANS or (until and verb not in VERBS.get(state, ())):
        raise HTTPException(404, "There is no such verb.")
    if until:
        if not (until.isdecimal() and count.isdecimal()) or len(until) > 16:
            raise HTTPException(400, "Nothing was done: the form is not whole.")
        if int(count) > MANY and form.get("typed", "").strip().replace(",", "") != count:
            raise HTTPException(400, f"Nothing was done: type the number, {count}, to {verb} these workflows.")
        ids = await site.app.workflows.aids(
            state=state, definition=definition or None, until=time_of(int(until)), limit=MOST_AT_ONCE
        )
    elif not 0 < len(ids) <= PAGE:
        raise HTTPException(400, f"Nothing was done: tick between one and {PAGE} workflows.")
    if form.get("sure") != "1":
        return await ask_first(
            site, request, verb, f"{verb.capitalize()} {plural(len(ids), 'workflow')}?", [MEANS[verb]],
            f"/workflows/ticked/act/{verb}", "/workflows", [*fields, ("sure", 1)],
        )  # fmt: skip
    number, refused = 0, list[str]()
    for id in ids:
        try:
            run = await site.app.workflows.aget(id)
            await {"retry": run.aretry_failed, "stop": run.astop, "delete": run.adelete}[verb]()
            number += 1
        except HeadraceError as error:
            refused.append(str(error))
    words = {"retry": "lines up again", "stop": "is stopped", "delete": "is deleted"}[verb]
    said = f"{plural(number, 'workflow')}: each {words}." if number else "Nothing was done."
    said += f" {len(refused)} refused: {refused[0]}" if refused else ""
    scope = f"all {state} {definition}" if until else f"ticked: {' '.join(ids)}"
    back = link("/workflows", {"state": state, "definition": definition})
    return await done(site, request, (verb, "workflows", ""), said, back, len(ids), scope)


async def flow(site: DashboardSite, request: Request) -> Response:
    id, client, reader = check_id(request.path_params["id"]), site.client, site.app.jobs.reader
    broke_first = Slice(LISTED, desc=False)
    records, page, failed = await site.read(
        asyncio.gather(
            client.arun(read_flows(client.keys, [id])),
            client.adrive(verbs.page(client, reader, id, None, DRAWN, None, lean=True)),
            client.arun(index_page(client.keys, f"broken:{id}", broke_first, values=False, finder=reader)),
        )
    )
    record = found(id, records).read_with(reader)
    if page.next and record.active and record.done > DRAWN // 2:
        # Nodes run more or less in the order of their numbers: the page follows those that run.
        begin = str(record.done - DRAWN // 4)
        page = await client.adrive(verbs.page(client, reader, id, None, DRAWN, begin, lean=True))
    # What broke, by the store's index, whatever the number of nodes: first what failed first.
    broken = {job.id: node_of(job, number_of(job.id)) for job in failed.records if job is not None}
    nodes = [node for node in page.rows if node.role not in ("join", "pass")]
    others = [node for node in nodes if node.job.id not in broken]
    jobs = [*broken.values(), *sorted(others, key=lambda node: (urgency(node.job.state), node.number))]
    sight = sight_of(site, request)
    now = (await site.frames.get(age=PATIENCE)).now
    far = [node for node in broken.values() if node.number not in {one.number for one in page.rows}]
    drawn = [*page.rows, *far]
    view = of_nodes(record.definition, drawn)
    boxes = boxes_of(view)
    drawing, near, count = await _draw(site, request, record, drawn, jobs, view, len(boxes.nodes))
    bars, hidden = _timeline(boxes if len(boxes.nodes) <= BARS else boxes_of(view, collapse=True), drawn, record, now)
    return await site.page(
        request, "workflow.html",
        lambda: {
            **workflow_details(record), **arguments_document(record, site.redactor, sight),
            **({"globals": WITHHELD} if sight == "none" else {}),
            "jobs": [node_document(node) for node in jobs],
        },
        title=f"{record.definition} · Workflows", run=record, broken=failed.count, why=await _why(site, record, jobs),
        jobs=[(node, error_line(node.job, site.redactor)) for node in jobs[:LISTED]], left=max(0, page.count - LISTED),
        shares=_shares(record), drawing=drawing, near=near, boxes=count, asked_near="near" in request.query_params,
        whole=page.next is None, drawn=DRAWN, arguments=arguments(record, site.redactor, sight), bars=bars,
        hidden=hidden, chain=longest_chain(page.rows, now),
    )  # fmt: skip


async def _why(site: DashboardSite, record: WorkflowRecord, jobs: Sequence[NodeRecord]) -> WhyShown | None:
    """Why its first active node does not run, or where it does; None where none is. Cost: a round trip."""
    waits = [node for state in ACTIVE for node in jobs if node.job.state is state]
    if record.state not in ("running", "pending", "stopped") or not waits:
        return None
    node = waits[0]
    name = node.facts.name or str(node.number)
    return why_of(await site.client.arun(why(site.client.keys, node.job.id)), name, f"/jobs/{node.job.id}")


def _shares(record: WorkflowRecord) -> list[tuple[str, int, float]]:
    total = max(1, record.total)
    counts: dict[str, int] = {state: number for state, number in record.counts.items() if number}
    # The store does not count which of these run, and which wait for a worker, a time or a limit.
    if record.active:
        counts["active"] = record.active
    rest = record.total - sum(counts.values())
    if rest > 0:
        counts["blocked"] = rest
    return [(state, number, 100 * number / total) for state, number in counts.items()]


async def _draw(
    site: DashboardSite, request: Request, record: WorkflowRecord, nodes: Sequence[NodeRecord],
    jobs: Sequence[NodeRecord], view: View, boxes: int,
) -> tuple[Drawing | None, int, int]:  # fmt: skip
    """The picture of a workflow, or of what is near one of its jobs; the number of that job, else 0; and the boxes."""
    if form_wanted(request):
        return None, 0, 0
    base, asked = base_of(request), request.query_params.get("near", "")
    links = {node.number: f"{base}/jobs/{node.job.id}" for node in nodes if node.role not in ("join", "pass")}
    near = 0
    if asked.isdecimal() and len(asked) < 10 and int(asked) in links:
        near = int(asked)
    elif boxes > MOST:
        # What broke or runs is what is looked for first.
        near = jobs[0].number
    shown = around(view, near, STEPS, NEAR) if near else view
    # A page does not wait for it: its first refresh, a moment later, does.
    drawing = await site.drawer.draw(f"{base} {record.id} {near}", shown, links, waits=POLL in request.headers)
    return drawing, near, len(shown.nodes)


def longest_chain(nodes: Sequence[NodeRecord], now: int) -> tuple[list[str], float]:
    """Of all chains of nodes that wait for one another, the one whose jobs have run for longest, up to ``now``: the
    names of those that began, in the order of their edges, and the seconds that they ran.
    """
    known = {node.number: node for node in nodes}
    parents = {number: [one for one in node.parents if one in known] for number, node in known.items()}
    # Of each node: seconds of its chain up to its end, and the parent before it; 0: none.
    best: dict[int, tuple[float, int]] = {0: (0.0, 0)}
    try:
        order = list(graphlib.TopologicalSorter(parents).static_order())
    except graphlib.CycleError:
        return [], 0.0
    for number in order:
        job, before = known[number].job, max((best[one][0], one) for one in (0, *parents[number]))
        ran = max(0, (job.finished_us or now) - job.started_us) / 1e6 if _began(known[number]) else 0.0
        best[number] = (before[0] + ran, before[1])
    last = max(best, key=lambda number: best[number][0])
    seconds, names = best[last][0], list[str]()
    while last:
        node = known[last]
        names += [node.facts.name or str(last)] if _began(node) else []
        last = best[last][1]
    return names[::-1], seconds


def _began(node: NodeRecord) -> bool:
    return bool(node.job.started_us and node.job.attempt)


class TimelineBar(msgspec.Struct, frozen=True):
    """A box of the graph over time.

    Attributes:
        name, number: of the box, and of its first job; id: of the job, empty where the box stands for several.
        state: the one whose colour it has.
        waits, runs: where each begins and how long it is, as shares of the whole time.
        took: seconds that it has run; None: it has not begun.
    """

    name: str
    number: int
    id: str
    state: str
    waits: tuple[float, float]
    runs: tuple[float, float]
    took: float | None


def _timeline(
    boxes: View, nodes: Sequence[NodeRecord], record: WorkflowRecord, now: int
) -> tuple[list[TimelineBar], int]:
    """What began or may begin, in the order of time, folded as the graph is; and how many bars are left out."""
    known = {node.number: node for node in nodes}
    shown = [box for box in boxes.nodes if not box.role]
    rows = [(box, known[box.number].job.due_us or box.began) for box in shown]
    rows = [(box, min(ready, box.began or ready)) for box, ready in rows if box.began or box.gravest in _WAITS]
    if not rows:
        return [], 0
    first = min(ready for _, ready in rows)
    last = max(record.finished_us or now, *(box.ended for box, _ in rows))
    share = 100 / max(1, last - first)

    def bar(box: ViewNode, ready: int) -> TimelineBar:
        over = box.gravest in FINAL
        end = box.ended if over and box.ended else last
        began = box.began or (ready if over else last)
        runs = ((began - first) * share, max(0.4, (end - began) * share) if box.began else 0.0)
        id = known[box.number].job.id if box.count == 1 else ""
        took = (end - box.began) / 1e6 if box.began else None
        return TimelineBar(
            box.label, box.number, id, box.gravest, ((ready - first) * share, (began - ready) * share), runs, took
        )

    # What broke or runs is not left out.
    kept = sorted(rows, key=lambda row: (urgency(row[0].gravest), row[1]))[:BARS]
    return [bar(*row) for row in sorted(kept, key=lambda row: row[1])], len(rows) - len(kept)
