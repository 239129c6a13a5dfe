"""The dashboard over a store that holds a million jobs, 10,000 workflows, 100 queues and 20 workers.

Each page is asked for by a dashboard of its own, so that nothing is shared with the page before; the application that
is asked is the same. Round trips are requests that the server read. Server time is that of the server's process, per
page; our time that of this process. Seconds on the wall are told with a bar, which counts on an idle machine only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bench.context import Context
from bench.figure import Bar, Figure, percentile
from bench.servers import Server, server

_JOBS, _FLOWS, _QUEUES, _WORKERS, _TASKS, _FAILED = 1_000_000, 10_000, 100, 20, 40, 5_000
_ROUNDS, _TABS = 40, 50
# Round trips that a page may take, the frame included that all tabs share for two seconds. The overview's INFO and lost
# statistics are read once in half a minute, its statistics once in five seconds.
_PAGES = {
    "/": 7, "/workers": 1, "/causes": 5, "/queues": 3, "/tasks": 3, "/jobs?state=failed": 3, "/jobs?state=ready": 4,
    "/jobs?state=failed&q=nothing": 3, "/workflows": 2, "/schedules": 2, "/limits": 2, "/cache": 2, "/store": 2,
    "/statistics": 4, "/jobs/ID": 2, "/workflows/ID": 4, "/queues/queue-1": 4, "/tasks/shop.task-1": 2,
}  # fmt: skip


@dataclass(slots=True)
class _Cost:
    """What one page cost: trips and server microseconds each, our seconds, seconds on the wall, bytes."""

    trips: list[float] = field(default_factory=list[float])
    server: list[float] = field(default_factory=list[float])
    ours: list[float] = field(default_factory=list[float])
    wall: list[float] = field(default_factory=list[float])
    size: int = 0


def _fill(target: Server, jobs: int, flows: int) -> Any:
    """An application over a store that holds so much."""
    from headrace import Flow, Headrace

    app = Headrace(target.url, max_finished=jobs)

    @app.task(name="shop.add")
    def add(number: int, text: str = "") -> int:
        return number + len(text)

    @app.workflow(name="shop.order")
    def order(flow: Flow, number: int) -> None:
        first = flow.run(add, number)
        flow.run(add, first)

    add_one = [add.options(queue=f"queue-{n}") for n in range(_QUEUES)]
    app.enqueue_many(add_one[n % _QUEUES].job(n, text="some text") for n in range(jobs))
    for number in range(flows):
        order.create(number)
    _count(app)
    _fail(app, min(_FAILED, jobs // 10))
    return app


def _count(app: Any) -> None:
    """Statistics of an hour, by task and queue."""
    from headrace.stats.histogram import bucket_of

    now = time.time()
    for minute in range(60):
        counts = {"started": 90, "succeeded": 85, "failed": 5}
        counts |= {f"run~{bucket_of(0.01 * (minute + 1))}": 90, f"wait~{bucket_of(0.2)}": 90}
        for n in range(_TASKS):
            app.stats.absorb(f"jobs/shop.task-{n}", counts, now - 60 * minute)
        for n in range(_QUEUES):
            app.stats.absorb(f"queues/queue-{n}", counts, now - 60 * minute)
    app.stats.flush()


def _fail(app: Any, count: int) -> None:
    """Workers that live and run something, and jobs that failed."""
    from headrace.model.job import JobError, error_json
    from headrace.protocol import consume

    client, keys, hour = app.client, app.client.keys, 3600 * 1_000_000
    for n in range(_WORKERS):
        names = [f"queue-{queue}" for queue in range(n * 5, n * 5 + 5)]
        facts = ["place", f"host-{n}:1", "queues", ",".join(names), "sizes", "process:8", "since", "1"]
        client.run(consume.register(keys, f"worker-{n}", hour, facts, tasks={"shop.add": "process"}))
    for request, error in enumerate(_errors(count), 1):
        claimed = client.run(consume.claim(keys, "worker-0", request, 500, [f"queue-{request % _QUEUES}"])).jobs
        data = error_json(JobError(type="ValueError", message=error, where="shop.py:7 in add", traceback="..."))
        rows = [(consume.Outcome(one.id, one.token, "failed", data, hour), one.ready) for one in claimed]
        client.run(consume.settle(keys, "worker-0", request, rows, hour))
    for n in range(_WORKERS):
        client.run(consume.claim(keys, f"worker-{n}", 10**6 + n, 8, [f"queue-{n * 5}"]))


def _errors(count: int) -> Iterator[str]:
    for n in range(0, count, 500):
        yield f"order {n} is not there"


async def _ask(app: Any, path: str, shared: Any = None) -> int:
    """Ask for one page; its bytes."""
    from headrace.dashboard import Dashboard, Visitor

    dashboard = shared or Dashboard(app, lambda _request: Visitor("bench", "operator"))
    place, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "method": "GET", "scheme": "http", "http_version": "1.1",
        "path": place, "raw_path": place.encode(), "root_path": "", "query_string": query.encode(),
        "headers": [(b"host", b"bench"), (b"accept", b"text/html")], "server": ("bench", 80), "client": ("bench", 1),
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await dashboard(scope, receive, send)
    assert sent[0]["status"] == 200, path
    return sum(len(message.get("body", b"")) for message in sent[1:])


async def _measured(app: Any, target: Server, paths: dict[str, str], rounds: int) -> dict[str, _Cost]:
    found = {name: _Cost() for name in paths}
    for round_ in range(rounds + 1):
        for name, cost in found.items():
            before, ours, begun = target.work(), time.process_time(), time.perf_counter()
            cost.size = await _ask(app, paths[name])
            wall, ours = time.perf_counter() - begun, time.process_time() - ours
            spent = target.work() - before
            # The first of each connects and loads scripts. A question of ours is a trip, too.
            if round_:
                cost.trips.append(spent.trips - 1)
                cost.server.append(spent.cpu)
                cost.ours.append(ours)
                cost.wall.append(wall)
    return found


async def _tabs(app: Any, target: Server) -> float:
    """Round trips of 50 tabs that refresh the overview at once."""
    from headrace.dashboard import Dashboard, Visitor

    shared = Dashboard(app, lambda _request: Visitor("bench"))
    before = target.work()
    await asyncio.gather(*(_ask(app, "/", shared) for _ in range(_TABS)))
    return (target.work() - before).trips - 1


def _figures(found: dict[str, _Cost], tabs: float, jobs: int) -> Iterator[Figure]:
    for path, cost in found.items():
        name = f"dashboard, {jobs:,} jobs, {path}"
        yield Figure(f"{name}: round trips", max(cost.trips), "", bar=Bar("at most", _PAGES[path]))
        yield Figure(f"{name}: server time", percentile(cost.server, 50) / 1e3, "ms CPU")
        yield Figure(f"{name}: our time", 1e3 * percentile(cost.ours, 50), "ms CPU")
        yield Figure(f"{name}: p95", 1e3 * percentile(cost.wall, 95), "ms", bar=Bar("at most", 50))
        yield Figure(f"{name}: size", cost.size / 1e3, "kB", bar=Bar("at most", 60) if path == "/" else None)
    yield Figure(f"dashboard, {_TABS} tabs of the overview at once: round trips", tabs, "", bar=Bar("at most", 7))


def run(context: Context) -> list[Figure]:
    """What each page costs, in round trips, processor time, seconds and bytes."""
    jobs, flows = context.scaled(_JOBS), context.scaled(_FLOWS)
    rounds = 5 if context.quick else _ROUNDS
    with server() as target:
        context.say(f"dashboard: {jobs:,} jobs and {flows:,} workflows are stored")
        app = _fill(target, jobs, flows)
        flow = app.workflows.page(limit=1).workflows[0].id
        job = app.jobs.page("failed", limit=1).jobs[0].id
        ids = {"/jobs/ID": f"/jobs/{job}", "/workflows/ID": f"/workflows/{flow}"}
        paths = {name: ids.get(name, name) for name in _PAGES}
        context.say("dashboard: pages are asked for")

        async def measure() -> tuple[dict[str, _Cost], float]:
            try:
                return await _measured(app, target, paths, rounds), await _tabs(app, target)
            finally:
                await app.aclose()

        found, tabs = asyncio.run(measure())
    return list(_figures(found, tabs, jobs))
