"""What to write instead of an option or verb of Celery, RQ, Dramatiq or arq: hints for errors. Pure."""

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
    "depends_on": "write after=job, or a list of jobs; many that follow each other are a workflow: @app.workflow",
    "link": "jobs that follow others are nodes of a workflow: @app.workflow",
    "acks_late": "a job is acknowledged after it ran, always; at_most_once=True is the opposite",
    "rate_limit": 'declare app.limit("api", Rate(10, per=1)) and write limits=["api"]',
    "rate": 'declare app.limit("api", Rate(10, per=1)) and write limits=["api"]',
    "concurrency": 'declare app.limit("api", Concurrency(3)) and write limits=["api"]',
    "max_concurrency": 'declare app.limit("api", Concurrency(3)) and write limits=["api"]',
    "cron": 'declare app.cron("0 9 * * *", task) behind the task',
    "crontab": 'declare app.cron("0 9 * * *", task) behind the task',
    "every": "declare app.every(timedelta(hours=6), task) behind the task",
    "result_expires": "write result_ttl= and failure_ttl=, in seconds",
    "on_failure": "catch what it raises in the task, or write a middleware with @app.middleware",
    "on_success": "write a middleware with @app.middleware, or a workflow whose next node follows",
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
    "conf": "give settings to Headrace(...), or set HEADRACE_...; app.settings has them",
    "autodiscover_tasks": "import the modules of the tasks where the application is, or name them: Tasks(...)",
    "chain": "jobs that follow others are nodes of a workflow: @app.workflow",
    "group": "app.enqueue_many(...) and app.wait(jobs), or nodes of a workflow: @app.workflow",
    "chord": "jobs that follow others are nodes of a workflow: @app.workflow",
}
# Verbs of a job elsewhere -> what to write here.
_OF_JOB = {
    "get": "job.result(timeout=...)",
    "wait": "job.result(timeout=...)",
    "status": "job.state",
    "ready": "job.state.final",
    "done": "job.state.final",
    "successful": 'job.state == "succeeded"',
    "failed": 'job.state == "failed"',
    "revoke": "job.cancel()",
    "abort": "job.cancel()",
    "forget": "job.delete()",
    "task_id": "job.id",
    "traceback": "job.refresh().error.traceback",
    "return_value": "job.result(timeout=...)",
    "latest_result": "job.result(timeout=...)",
    "get_status": "job.state",
    "is_finished": "job.state.final",
    "requeue": "job.retry()",
    "meta": "job.refresh().progress_data, which current_job().progress(share, text, data) sets in the job",
}
# Verbs of a run elsewhere -> what to write here.
_OF_RUN = {"result": "run.wait() and run.node(name).result()", "get": "run.wait()", "status": "run.state"}
# What people import from other queues -> what to write here.
OF_PACKAGE = {
    "task": "@app.task, of app = Headrace()",
    "shared_task": "@app.task, of app = Headrace(); for an application that is made later, Tasks()",
    "chain": "a workflow: @app.workflow",
    "group": "app.enqueue_many(...), or a workflow: @app.workflow",
    "chord": "a workflow: @app.workflow",
    "Celery": "Headrace()",
    "Queue": 'Headrace(), and @app.task(queue="...") for its tasks',
    "Snooze": "raise RetryAfter(5), which uses up a retry, or current_job().snooze(5), which does not",
    "get_current_job": "current_job()",
}
# Verbs of a workflow elsewhere, all of which are two steps here.
_OF_WORKFLOW = ("start", "run", "enqueue", "submit", "delay", "apply_async", "execute")


def misplaced_option_hint(task: str, name: str, value: object) -> str:
    if name in ROWS:
        return f"; as an option of the job: {task}.options({name}={value!r:.40}).enqueue(...)"
    return f"; as an option, {OPTIONS[name]}" if name in OPTIONS else ""


def instead(name: str) -> str:
    if name in OPTIONS:
        return OPTIONS[name]
    known = [*ROWS, *sorted(TASK_ONLY)]
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"the options are {', '.join(known)}"


def of_workflow(workflow: str, name: str) -> str:
    here = f": write {workflow}.create(...).start()" if name in _OF_WORKFLOW else ""
    return f"the definition of a workflow has no {name!r}{here}"


def of_task(task: str, name: str) -> str:
    here = _OF_TASK.get(name)
    return f"a task has no {name!r}" + (f": write {task}.{here}" if here else "")


def of_job(name: str) -> str:
    return f"a job has no {name!r}" + (f": write {_OF_JOB[name]}" if name in _OF_JOB else "")


def of_run(name: str) -> str:
    return f"a workflow run has no {name!r}" + (f": write {_OF_RUN[name]}" if name in _OF_RUN else "")


def of_app(name: str) -> str:
    here = _OF_APP.get(name)
    return f"a Headrace application has no {name!r}" + (f": {here}" if here else "")
