"""What to write instead of an option or verb that there is not, such as those of other queues: hints for errors. Pure.

The table holds what people who come from Celery, RQ, Dramatiq or arq type first; a test walks through it.
"""

from __future__ import annotations

import difflib

from headrace.model.options import ROWS, TASK_ONLY

# Options of a task or job elsewhere -> what to write here.
OPTIONS = {
    "bind": "a job asks for itself: current_job() gives its id, attempt and more",
    "countdown": "write delay=, in seconds",
    "eta": "write at=, a datetime with a time zone",
    "defer_by": "write delay=, in seconds",
    "defer_until": "write at=, a datetime with a time zone",
    "max_retries": "write retries=, a number or a Retry(max=...)",
    "autoretry_for": "write retries=Retry(on=(...))",
    "retry_for": "write retries=Retry(on=(...))",
    "default_retry_delay": "write retries=Retry(delay=...)",
    "retry_backoff": "write retries=Retry(factor=...)",
    "min_backoff": "write retries=Retry(delay=...)",
    "max_backoff": "write retries=Retry(max_delay=...)",
    "time_limit": "write hard_timeout= for a kill, timeout= for an exception in the job",
    "soft_time_limit": "write timeout=",
    "job_timeout": "write timeout=",
    "ignore_result": "write result_ttl=0",
    "store_results": "a result is kept for result_ttl= seconds",
    "ttl": "write expires=",
    "max_age": "write expires=",
    "queue_name": "write queue=",
    "actor_name": "write name=",
    "task_id": "write request_id=: the same one makes no second job",
    "job_id": "write request_id=: the same one makes no second job",
    "depends_on": "jobs that follow others are nodes of a workflow: @app.workflow",
    "link": "jobs that follow others are nodes of a workflow: @app.workflow",
    "acks_late": "a job is acknowledged after it ran, always; at_most_once=True is the opposite",
    "rate_limit": 'declare app.limit("api", Rate(10, per=1)) and write limits=["api"]',
    "rate": 'declare app.limit("api", Rate(10, per=1)) and write limits=["api"]',
    "concurrency": 'declare app.limit("api", Concurrency(3)) and write limits=["api"]',
    "max_concurrency": 'declare app.limit("api", Concurrency(3)) and write limits=["api"]',
    "cron": 'declare app.cron("0 9 * * *", task) behind the task',
    "crontab": 'declare app.cron("0 9 * * *", task) behind the task',
    "every": "declare app.every(timedelta(hours=6), task) behind the task",
    "serializer": "arguments travel as MessagePack, checked against the annotations",
}
# Verbs of a task elsewhere -> the one here.
_OF_TASK = {
    "delay": "enqueue(...)",
    "send": "enqueue(...)",
    "kiq": "enqueue(...)",
    "queue": "enqueue(...)",
    "apply_async": "options(delay=..., queue=...).enqueue(...)",
    "send_with_options": "options(delay=..., queue=...).enqueue(...)",
    "schedule": "options(delay=...).enqueue(...)",
    "s": "job(...)",
    "si": "job(...)",
    "message": "job(...)",
    "map": "job(...), for app.enqueue_many(...)",
}
# Verbs of an application elsewhere -> what to write here.
_OF_APP = {
    "enqueue": "a task enqueues itself: task.enqueue(...); one whose code is elsewhere, app.by_name(name).enqueue(...)",
    "enqueue_job": "app.by_name(name).enqueue(...)",
    "enqueue_in": "task.options(delay=...).enqueue(...)",
    "enqueue_at": "task.options(at=...).enqueue(...)",
    "enqueue_call": "task.enqueue(...)",
    "send_task": "app.by_name(name).enqueue(...)",
    "actor": "@app.task",
    "shared_task": "@app.task",
    "register_task": "@app.task",
    "add_periodic_task": 'app.every(timedelta(minutes=5), task) or app.cron("0 9 * * *", task)',
    "schedule": 'app.every(timedelta(minutes=5), task) or app.cron("0 9 * * *", task)',
    "crontab": 'app.cron("0 9 * * *", task)',
    "control": "app.workers, app.queues and job.cancel()",
    "AsyncResult": "app.job(id)",
    "fetch_job": "app.job(id)",
    "worker_main": "run `headrace worker module:app`",
    "start": "run `headrace worker module:app`",
}


# Verbs of a workflow elsewhere, all of which are two steps here.
_OF_WORKFLOW = ("start", "run", "enqueue", "submit", "delay", "apply_async", "execute")


def misplaced(task: str, name: str, value: object) -> str:
    """What an error adds where an option was given to ``enqueue`` as an argument; empty where it is none."""
    if name in ROWS:
        return f"; as an option of the job: {task}.options({name}={value!r:.40}).enqueue(...)"
    return f"; as an option, {OPTIONS[name]}" if name in OPTIONS else ""


def instead(name: str) -> str:
    """What to write for an option that does not exist."""
    if name in OPTIONS:
        return OPTIONS[name]
    known = [*ROWS, *sorted(TASK_ONLY)]
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"the options are {', '.join(known)}"


def of_workflow(workflow: str, name: str) -> str:
    """Why a workflow's definition has no such attribute."""
    here = f": write {workflow}.create(...).start()" if name in _OF_WORKFLOW else ""
    return f"the definition of a workflow has no {name!r}{here}"


def of_task(task: str, name: str) -> str:
    """Why a task has no such attribute."""
    here = _OF_TASK.get(name)
    return f"a task has no {name!r}" + (f": write {task}.{here}" if here else "")


def of_app(name: str) -> str:
    """Why an application has no such attribute."""
    here = _OF_APP.get(name)
    return f"a Headrace application has no {name!r}" + (f": {here}" if here else "")
