"""What a page costs in round trips, as a proxy between dashboard and server counts them: the same for a few jobs and for many."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import pytest

from headrace import Flow, Headrace
from headrace.dashboard import Dashboard, mounting
from headrace.model.job import JobError, Outcome, error_json
from headrace.protocol import consume
from headrace.stats.resolutions import bucket_of
from tests.dashboard.asking import ask, operator
from tests.proxy import Proxy
from tests.servers import Server

HOUR = 3_600_000_000
PAGES = {
    "/": 1, "/workers": 1, "/workers/host-0:1": 1, "/causes": 1, "/causes?task=shop.add": 1, "/activity": 1,
    "/queues": 1, "/queues/queue-1": 2, "/queues/paused": 2, "/tasks": 1, "/tasks/shop.add": 3,
    "/tasks/shop.fails": 2,
    "/jobs?state=failed": 2, "/jobs?state=ready": 2, "/jobs?state=running": 2,
    "/jobs?state=ready&queue=queue-1": 2, "/jobs/ID": 1, "/workflows": 1, "/workflows/SMALL": 2, "/workflows/LARGE": 3,
    "/schedules": 1, "/limits": 1, "/cache": 1, "/store": 1, "/jobs/new": 1, "/bulk": 1, "/bulk/new?verb=cancel&state=scheduled": 1,
}  # fmt: skip


@pytest.fixture
def server(new_server: Callable[..., Server]) -> Server:
    return new_server(tcp=True)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server) as proxy:
        yield proxy


class Store:
    """A store to look at: queues, workers, workflows and statistics, and as many jobs as a test puts there."""

    def __init__(self, app: Headrace) -> None:
        self.app, self.requests = app, itertools.count(1)

        @app.task(name="shop.add")
        def add(number: int) -> int:
            return number

        @app.workflow(name="shop.order")
        def order(flow: Flow, size: int) -> None:
            for number in range(size):
                flow.run(add, number)

        self.add = add
        app.queues["paused"].pause()
        self.ids = {"SMALL": order.create(3).id, "LARGE": order.create(300).id}
        counts = {"started": 9, "succeeded": 9, f"run~{bucket_of(0.2)}": 9}
        for n in range(30):
            app.stats.absorb(f"jobs/shop.task-{n}", counts, time.time() - 60)
            app.stats.absorb(f"queues/queue-{n}", counts, time.time() - 60)
        app.stats.absorb("jobs/shop.fails", {"started": 1, "failed": 1}, time.time() - 60)
        app.stats.flush()

    def put(self, jobs: int) -> None:
        """Put more jobs there: of ten one fails, and a few run."""
        app, keys = self.app, self.app.client.keys
        app.enqueue_many(self.add.options(queue=f"queue-{n % 3}").job(n) for n in range(jobs))
        facts = ["place", "host-0:1", "queues", "queue-0,queue-1,queue-2", "sizes", "process:8", "since", "1"]
        app.client.run(consume.register(keys, "w0", HOUR, facts, tasks={"shop.add": "process"}))
        error = error_json(JobError(type="ValueError", message="no", where="shop.py:7 in add"))
        for first in range(0, jobs // 10, 500):
            limit = min(500, jobs // 10 - first)
            claimed = app.client.run(consume.claim(keys, "w0", next(self.requests), limit, ["queue-0"])).jobs
            rows = [(Outcome(one.id, one.token, "failed", error, HOUR), one.ready) for one in claimed]
            app.client.run(consume.settle(keys, "w0", next(self.requests), rows, HOUR))
        app.client.run(consume.claim(keys, "w0", next(self.requests), 5, ["queue-1"]))
        self.ids["ID"] = app.jobs.page("failed", limit=1)[0].id

    def path(self, page: str) -> str:
        for word, id in self.ids.items():
            page = page.replace(word, id)
        return page


async def costs(store: Store, app: Headrace, *proxies: Proxy) -> dict[str, int]:
    """Round trips of each page, asked of a dashboard of its own, so that nothing is shared with the page before."""
    found: dict[str, int] = {}
    for page in PAGES:
        # The first one connects, and the server learns its scripts.
        for _ in range(2):
            before = sum(proxy.trips for proxy in proxies)
            answer = await ask(Dashboard(app, operator), store.path(page))
            assert answer.status == 200, (page, answer.text[:200])
        found[page] = sum(proxy.trips for proxy in proxies) - before
    return found


def test_each_page_that_needs_no_name_is_counted() -> None:
    counted = {page.partition("?")[0] for page in PAGES}
    assert {path for path in mounting.PAGES if "{" not in path} - counted == set()


async def test_a_page_is_one_or_two_round_trips_however_many_jobs_there_are(server: Server, proxy: Proxy) -> None:
    store = Store(Headrace(server.url))
    app = Headrace(proxy.url)
    try:
        store.put(100)
        assert await costs(store, app, proxy) == PAGES
        store.put(9_900)
        assert await costs(store, app, proxy) == PAGES
    finally:
        await app.aclose()
        await store.app.aclose()


async def test_statistics_of_a_server_of_their_own_cost_one_more(
    server: Server, proxy: Proxy, new_server: Callable[..., Server]
) -> None:
    second = new_server(tcp=True)
    store = Store(Headrace(server.url, stats_url=second.url))
    with Proxy(second) as counted:
        app = Headrace(proxy.url, stats_url=counted.url)
        try:
            store.put(100)
            found = await costs(store, app, proxy, counted)
            assert {
                page: found[page] - trips for page, trips in PAGES.items() if found[page] != trips
            } == dict.fromkeys(
                (
                    "/",
                    "/queues",
                    "/queues/queue-1",
                    "/queues/paused",
                    "/tasks",
                    "/tasks/shop.add",
                    "/tasks/shop.fails",
                ),
                1,
            )
        finally:
            await app.aclose()
            await store.app.aclose()
