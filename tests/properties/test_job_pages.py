"""Every job that is counted as ready is on exactly one page, however jobs, limits and pages are cut."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import Headrace
from headrace.model.limit_rules import Concurrency, LimitRule
from tests.scripts.limited_stage import declare
from tests.scripts.stage import SECOND, Stage

# Of one value, of two, of none; and a task without limits.
TASKS = {
    "by_account": [LimitRule("account", concurrency=Concurrency(1), by="account")],
    "by_both": [
        LimitRule("account", concurrency=Concurrency(1), by="account"),
        LimitRule("n", concurrency=Concurrency(2), by="n"),
    ],
    "whole": [LimitRule("api", concurrency=Concurrency(2))],
    "free": [],
}
JOBS = st.lists(
    st.tuples(
        st.sampled_from(list(TASKS)),
        st.sampled_from(["default", "mail"]),
        st.integers(0, 12),
        st.sampled_from([-3, 0, 0, 5]),
        st.integers(0, 2),
    ),
    max_size=16,
)


def packed(value: int) -> bytes:
    return msgspec.msgpack.encode([[value, value % 2], {}])


def paged(app: Headrace, limit: int, **query: Any) -> list[str]:
    found, after = list[str](), None
    while True:
        page = app.jobs.page("ready", limit=limit, after=after, **query)
        found += [record.id for record in page]
        after = page.next
        if after is None:
            return found


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    jobs=JOBS, copies=st.sampled_from([1, 40]), limit=st.sampled_from([3, 25, 250, 1000]),
    started=st.integers(0, 20), order=st.sampled_from(["asc", "desc"]),
)  # fmt: skip
def test_each_ready_job_is_on_one_page(
    client: redis.Redis, url: str, jobs: list[Any], copies: int, limit: int, started: int, order: Any
) -> None:
    client.flushall()
    shards = Headrace(url).client.shards
    stages = [Stage(client, "hr", keys.shard, keys.number, guarded=False) for keys in shards]
    stage = stages[0]
    declare(stage, TASKS)
    made: dict[str, dict[str, str | None]] = {}
    for task, queue, value, priority, late in jobs:
        stage.now += late * SECOND
        key = f"k{value % 3}" if value else ""
        # Limits live on the first shard.
        place = stages[value % len(stages) if task == "free" else 0]
        place.now = stage.now
        ids = place.put(copies, task=task, queue=queue, key=key, priority=priority, args=packed(value))
        made |= {id: {"task": task, "queue": queue, "key": key or None} for id in ids}
    for claim in stage.claim(limit=started, queues=("default", "mail")).jobs if started else ():
        del made[claim.id]
    with Headrace(url) as app:
        assert app.jobs.count("ready") == len(made)
        assert sorted(paged(app, limit, order=order)) == sorted(made)
        for name, value in (("key", "k1"), ("task", "by_both"), ("queue", "mail")):
            wanted = sorted(id for id, facts in made.items() if facts[name] == value)
            assert sorted(paged(app, limit, order=order, **{name: value})) == wanted


@pytest.mark.parametrize("limit", [60, 1000])
def test_jobs_of_more_values_than_one_script_reads_are_on_the_pages(client: redis.Redis, url: str, limit: int) -> None:
    stage = Stage(client, number=Headrace(url).client.keys.number, guarded=False)
    declare(stage, {"by_account": TASKS["by_account"]})
    jobs = [stage.job(task="by_account", args=packed(n // 2)) for n in range(2400)]
    for n in range(0, len(jobs), 600):
        stage.enqueue(*jobs[n : n + 600])
    made = [job.id for job in jobs]
    with Headrace(url) as app:
        assert sorted(paged(app, limit)) == sorted(made)
        assert sorted(paged(app, limit, queue="default")) == sorted(made)
