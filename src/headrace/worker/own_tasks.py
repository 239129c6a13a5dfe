"""Headrace's own tasks, which every worker knows: calls of hooks, bulk operations.

Their jobs wait in a queue of their own, and run on runners of the kind ``own``. What an application sets for its jobs,
such as middleware, defaults and limits, does not apply to them.
"""

from __future__ import annotations

import inspect
from typing import Any

from headrace.admin.bulk_operations import KEPT, work
from headrace.admin.event_log import EventHook
from headrace.app import Headrace
from headrace.context import current_job
from headrace.model.activity import HOOK_TASKS, event_of
from headrace.model.form import of_task
from headrace.model.options import OWN
from headrace.model.retry import Retry
from headrace.protocol.operations import BULK_TASK, BulkRequest, JobFilter
from headrace.tasks.task import Task

# Seconds that a call of a hook may take; and two further starts, after 5 and 30 seconds.
HOOK_TIMEOUT = 30.0
HOOK_RETRY = Retry(max=2, delay=5, factor=6, jitter=0, on=(BaseException,))

Tasks = dict[str, Task[..., Any, Any]]


def own_tasks(app: Headrace) -> Tasks:
    tasks = [_bulk(app), *(_hook(app, hook) for hook in app.hooks.declared.values())]
    return {task.name: task for task in tasks}


def worker_tasks(app: Headrace) -> Tasks:
    return {**app.tasks, **own_tasks(app)}


def _hook(app: Headrace, hook: EventHook) -> Task[..., None, None]:
    def call(events: list[tuple[str, dict[str, str]]]) -> None:
        found: Any = hook.function([event_of(*row) for row in events])
        if inspect.iscoroutine(found):
            import asyncio  # at first use: each fork of a job copies the page tables of its image

            asyncio.run(found)

    options = of_task({"timeout": HOOK_TIMEOUT, "retries": HOOK_RETRY, "result_ttl": 0})
    return Task(app.context, HOOK_TASKS + hook.name, call, OWN, options)


def _bulk(app: Headrace) -> Task[..., None, None]:
    def bulk(verb: str, which: JobFilter, bound_us: int, rate: int, total: int, exact: bool, who: str, by: str) -> None:
        job = current_job()
        request = BulkRequest(verb, which, bound_us, rate, total, exact, who, by)
        for progress in work(app.client, request, app.client.keys_for(job.id), job.id):
            job.progress(min(1.0, progress.done / max(1, total)), progress.words)

    retries = Retry(max=20, delay=1, max_delay=60)
    options = of_task({"retries": retries, "max_crashes": 100, "result_ttl": KEPT, "failure_ttl": KEPT})
    return Task(app.context, BULK_TASK, bulk, OWN, options)
