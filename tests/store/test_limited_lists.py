"""Lists of ready jobs have those that wait behind a limit, in pages, with their times."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace import Concurrency, Headrace
from headrace.admin.documents import queue_document
from headrace.protocol import consume
from headrace.protocol.limit_verbs import declare_limits


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url) as app:
        app.limit("account", Concurrency(1), by="account")

        @app.task(name="t.call", limits=["account"])
        def call(account: str) -> None: ...

        @app.task(name="t.free")
        def free(n: int) -> None: ...

        # What a worker tells of limits stays when it has left.
        keys = app.client.keys
        app.client.run(consume.register(keys, "w9", 10_000_000, ["place", "host:9"]))
        app.client.run(declare_limits(keys, "w9", app.tasks, app.limits.declared()))
        app.client.run(consume.retire(keys, "w9"))
        yield app


@pytest.mark.parametrize("queue", ["default", None])
@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_each_job_is_on_one_page(app: Headrace, queue: str | None, order: str, limit: int) -> None:
    call, free = app.tasks["t.call"], app.tasks["t.free"]
    made = [call.enqueue(account).id for account in ("a", "b", "c|d", "a", "a")] + [
        free.enqueue(n).id for n in range(3)
    ]
    made += [free.options(queue="later").enqueue(1).id] if queue is None else []
    seen, after = list[str](), None
    while True:
        page = app.jobs.page("ready", queue=queue, limit=limit, after=after, order=order)  # type: ignore[arg-type]
        assert page.count == len(made)
        assert all(job.due_us for job in page)
        seen += [job.id for job in page]
        if page.next is None:
            break
        after = page.next
    assert len(seen) == len(made)
    assert set(seen) == set(made)
    assert len(app.jobs.page("ready", queue=queue, task="t.call")) == 5


def test_a_queue_whose_jobs_all_wait_behind_a_limit_waits_for_them(app: Headrace) -> None:
    """Its delay was none, and a limit that held everything was invisible."""
    app.limits["account"].pause()
    app.tasks["t.call"].enqueue("a")
    seen = app.overview()
    (queue,) = seen.queues
    document = queue_document(queue, seen.now, 0)
    assert (document["ready"], queue.held) == (1, 1)
    assert document["oldest_wait"] >= 0
