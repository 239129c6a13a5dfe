"""A store for the dashboard to show, filled by the verbs that programs and workers use, without a worker's process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

QUEUES, WORKERS, TASKS, FAILED, NODES, CAUSES = 100, 20, 40, 5_000, 1_000, 25
_HOUR = 3_600_000_000

Say = Callable[[str], None]


def fill(url: str, jobs: int, flows: int, say: Say) -> tuple[Any, dict[str, str]]:
    """An application over a store that holds so much, and ids by the words that stand for them in pages."""
    from headrace import Flow, Headrace

    app = Headrace(url, max_finished=jobs)

    @app.task(name="shop.add")
    def add(number: int, text: str = "") -> int:
        return number + len(text)

    @app.workflow(name="shop.order")
    def order(flow: Flow, number: int) -> None:
        first = flow.run(add, number)
        flow.run(add, first)

    @app.workflow(name="shop.many")
    def many(flow: Flow, number: int) -> None:
        parts = [flow.run(add, n) for n in range(number - 1)]
        flow.run(add, 0, after=parts)

    add_one = [add.options(queue=f"queue-{n}") for n in range(QUEUES)]
    app.enqueue_many(add_one[n % QUEUES].job(n, text="some text") for n in _counted(jobs, "jobs", say))
    small = [order.create(number).id for number in _counted(flows, "workflows", say)]
    large = many.create(NODES).id
    say("statistics are counted")
    _count(app)
    say("jobs fail")
    _fail(app, min(FAILED, jobs // 10))
    return app, {
        "ID": app.jobs.page("failed", limit=1)[0].id,
        "SMALL": small[-1],
        "LARGE": large,
        "CAUSE": _cause(app),
    }


def _counted(number: int, what: str, say: Say) -> Iterator[int]:
    for n in range(number):
        if n % max(1, number // 20) == 0:
            say(f"{n:,} of {number:,} {what} are stored")
        yield n


def _count(app: Any) -> None:
    """Statistics by task and queue: of an hour by minutes, and of a year by days."""
    from headrace.stats.resolutions import bucket_of

    now = time.time()
    labels = [f"jobs/shop.task-{n}" for n in range(TASKS)] + [f"queues/queue-{n}" for n in range(QUEUES)]
    for ago in [60 * n for n in range(60)] + [86400 * n for n in range(1, 365)]:
        counts = {"started": 90, "succeeded": 85, "failed": 5, f"wait~{bucket_of(0.2)}": 90}
        counts |= {f"run~{bucket_of(0.01 * (ago // 60 % 60 + 1))}": 90}
        for label in labels if ago < 3600 else labels[:10]:
            app.stats.absorb(label, counts, now - ago)
    app.stats.flush()


def _fail(app: Any, count: int) -> None:
    """Workers that live and run something, and jobs that failed."""
    from headrace.model.job import Outcome
    from headrace.protocol import consume

    client, keys = app.client, app.client.keys
    for n in range(WORKERS):
        names = [f"queue-{queue}" for queue in range(n * 5, n * 5 + 5)]
        facts = ["place", f"host-{n}:1", "queues", ",".join(names), "sizes", "process:8", "since", "1"]
        client.run(consume.register(keys, f"worker-{n}", _HOUR, facts, tasks={"shop.add": "process"}))
    for request in range(1, count // 100 + 1):
        claimed = client.run(consume.claim(keys, "worker-0", request, 100, [f"queue-{request % QUEUES}"])).jobs
        error = _error(request)
        rows = [(Outcome(one.id, one.token, "failed", error, _HOUR), one.ready) for one in claimed]
        client.run(consume.settle(keys, "worker-0", request, rows, _HOUR))
    for n in range(WORKERS):
        client.run(consume.claim(keys, f"worker-{n}", 10**6 + n, 8, [f"queue-{n * 5}"]))


def _cause(app: Any) -> str:
    """The cause of the newest failure."""
    from headrace.model.job_record import cause_id

    failed = app.jobs.page("failed", limit=1)[0]
    return cause_id(failed.task, failed.error)


def _error(number: int) -> bytes:
    """An error as large as errors are, of one of some causes."""
    from headrace.model.job import JobError, error_json

    where = f"shop.py:{number % CAUSES} in step_{number % CAUSES}"
    trace = "".join(f'  File "/srv/shop/step_{n}.py", line {n}, in step_{n}\n    call({n})\n' for n in range(20))
    return error_json(
        JobError(type="ValueError", message=f"order {number} is not there", where=where, traceback=trace, attempt=1)
    )
