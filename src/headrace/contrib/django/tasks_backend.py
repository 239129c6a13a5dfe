"""Headrace as a backend of Django's tasks: ``TASKS = {"default": {"BACKEND": BACKEND}}``.

``BACKEND`` is ``headrace.contrib.django.tasks_backend.HeadraceBackend`` with Django 6.0 and newer, its
``BackportBackend`` with the package ``django-tasks``. ``OPTIONS`` are options of each job, such as ``{"retries": 3}``.
"""

# Django has no types.
# pyright: basic
from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import sync_to_async
from django.utils import timezone
from django.utils.module_loading import import_string

from headrace.context import current_job
from headrace.contrib.django import app
from headrace.errors import JobNotFound
from headrace.model.ids import milliseconds_of
from headrace.model.job import State
from headrace.model.job_record import Record
from headrace.model.notation import utc

DJANGO, BACKPORT = "django.tasks", "django_tasks"
# States of Headrace, as Django sees them; all others are READY.
_STATES = {State.RUNNING: "RUNNING", State.SUCCEEDED: "SUCCESSFUL"} | dict.fromkeys(
    (State.FAILED, State.CANCELLED, State.QUARANTINED, State.SKIPPED), "FAILED"
)


@app.task(name="django:task")
def run(path: str, alias: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    with DjangoStart(path, alias, args, kwargs) as start:
        return start.done(start.task.func(*start.args, **kwargs))


@app.task(name="django:atask")
async def arun(path: str, alias: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Run a task of Django that is a coroutine function. Receivers of signals may use the database."""
    start = await sync_to_async(DjangoStart(path, alias, args, kwargs).__enter__)()
    try:
        value = start.done(await start.task.func(*start.args, **kwargs))
    except BaseException as error:
        await sync_to_async(start.failed)(error)
        raise
    await sync_to_async(start.__exit__)(None, None, None)
    return value


class DjangoStart:
    """One start of a task of Django. ``args``: with the context, if it takes one."""

    def __init__(self, path: str, alias: str, args: list[Any], kwargs: dict[str, Any]) -> None:
        job = current_job()
        self.task: Any = import_string(path)
        self._package = package_of(self.task)
        self._backend: Any = import_module(self._package).task_backends[alias]
        workers = ["headrace"] * job.attempt
        self._result: Any = self._backend.result_of(self.task, job.id, args, kwargs, "RUNNING", worker_ids=workers)
        now = timezone.now()
        self._set(started_at=now, last_attempted_at=now)
        context = import_module(f"{self._package}.base").TaskContext(task_result=self._result)
        self.args = [context, *args] if self.task.takes_context else args

    def __enter__(self) -> DjangoStart:
        self._signal("task_started")
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.failed(error)
        else:
            self._signal("task_finished")

    def done(self, value: Any) -> Any:
        """What the task returned, as JSON can carry it. Raises TypeError: it cannot."""
        normalize: Any = import_module("django.utils.json" if self._package == DJANGO else "django_tasks.utils")
        found = normalize.normalize_json(value)
        self._set(_return_value=found, status=type(self._result.status).SUCCESSFUL, finished_at=timezone.now())
        return found

    def failed(self, error: BaseException) -> None:
        if not current_job().will_retry(error):
            self._set(status=type(self._result.status).FAILED, finished_at=timezone.now())
            self._signal("task_finished")

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self._result, name, value)

    def _signal(self, name: str) -> None:
        signals: Any = import_module(f"{self._package}.signals")
        getattr(signals, name).send(type(self._backend), task_result=self._result)


def package_of(task: Any) -> str:
    """The package whose task it is; nothing else is run. Raises TypeError: it is not a task of Django."""
    for package in (DJANGO, BACKPORT):
        if find_spec(package) is not None and isinstance(task, import_module(f"{package}.base").Task):
            return package
    raise TypeError(f"{task!r:.80} is not a task of Django")


class JobsBackend:
    """What a backend does, beside the base class of the package that defines what a task is.

    Attributes:
        types, missing, signals: of that package: its module of types, its error of an unknown id, its signals.
    """

    types: Any
    missing: Any
    signals: Any
    alias: str
    options: dict[str, Any]
    validate_task: Any
    supports_defer = supports_async_task = supports_get_result = supports_priority = True

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.validate_task(task)
        result = self.result_of(task, "", list(args), kwargs, "READY")
        job = self._bound(task).enqueue(*self._sent(task, result))
        return self._enqueued(result, job.id)

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.validate_task(task)
        result = self.result_of(task, "", list(args), kwargs, "READY")
        job = await self._bound(task).aenqueue(*self._sent(task, result))
        return await sync_to_async(self._enqueued)(result, job.id)

    def get_result(self, result_id: str) -> Any:
        try:
            return self._read(app.job(result_id).refresh())
        except JobNotFound as error:
            raise self.missing(result_id) from error

    async def aget_result(self, result_id: str) -> Any:
        try:
            record = await app.job(result_id).arefresh()
        except JobNotFound as error:
            raise self.missing(result_id) from error
        return await sync_to_async(self._read)(record)

    def result_of(self, task: Any, id: str, args: Any, kwargs: Any, status: str, **values: Any) -> Any:
        empty = dict.fromkeys(("enqueued_at", "started_at", "finished_at", "last_attempted_at"))
        given: dict[str, Any] = {**empty, "errors": [], "worker_ids": [], **values}
        state = self.types.TaskResultStatus(status)
        return self.types.TaskResult(
            task=task, id=id, status=state, args=args, kwargs=kwargs, backend=self.alias, **given
        )

    def _bound(self, task: Any) -> Any:
        at = task.run_after
        if at is not None and timezone.is_naive(at):
            at = timezone.make_aware(at)
        given = {"queue": task.queue_name, "priority": task.priority, "note": task.module_path[:256], "at": at}
        return (arun if iscoroutinefunction(task.func) else run).options(**{**self.options, **given})

    def _sent(self, task: Any, result: Any) -> tuple[Any, ...]:
        return task.module_path, self.alias, result.args, result.kwargs

    def _enqueued(self, result: Any, id: str) -> Any:
        object.__setattr__(result, "id", id)
        # As each read of the result says it.
        object.__setattr__(result, "enqueued_at", utc(milliseconds_of(id) * 1000))
        self.signals.task_enqueued.send(type(self), task_result=result)
        return result

    def _read(self, record: Record) -> Any:
        if record.task not in (run.name, arun.name):
            raise self.missing(record.id)
        if (seal := app.client.keys.seal) is not None:
            record = seal.opened_record(record)
        path, _, args, kwargs = record.args
        task = import_string(path).using(priority=record.priority, queue_name=record.queue, backend=self.alias)
        workers = [one.worker for one in record.attempts]
        if len(workers) < record.attempt:
            workers += [record.owner or "headrace"] * (record.attempt - len(workers))
        first = record.attempts[0].started if record.attempts else record.started
        result = self.result_of(
            task, record.id, args, kwargs, _STATES.get(record.state, "READY"),
            enqueued_at=record.created, started_at=first, finished_at=record.finished,
            last_attempted_at=record.started, errors=self._errors(record), worker_ids=workers,
        )  # fmt: skip
        if record.state is State.SUCCEEDED:
            object.__setattr__(result, "_return_value", record.result)
        return result

    def _errors(self, record: Record) -> list[Any]:
        def error(type: str, trace: str) -> Any:
            path = type if "." in type else f"builtins.{type}"
            return self.types.TaskError(exception_class_path=path, traceback=trace)

        earlier = [one for one in record.attempts if one.outcome in ("retry", "crashed")]
        found = [error(one.error.partition(":")[0] or "Exception", one.error) for one in earlier]
        last = record.error
        return found if last is None else [*found, error(last.type, last.traceback or last.message)]


def backend_of(package: str) -> Any:
    parts: dict[str, Any] = {
        "types": import_module(f"{package}.base"),
        "missing": import_module(f"{package}.exceptions").TaskResultDoesNotExist,
        "signals": import_module(f"{package}.signals"),
        "__module__": __name__,
    }
    base: Any = import_module(f"{package}.backends.base").BaseTaskBackend
    return type(base)("HeadraceBackend" if package == DJANGO else "BackportBackend", (JobsBackend, base), parts)


if find_spec(DJANGO) is not None:
    HeadraceBackend = backend_of(DJANGO)
if find_spec(BACKPORT) is not None:
    BackportBackend = backend_of(BACKPORT)
