"""``shared_task``, ``.delay`` and ``.apply_async`` for code that comes from Celery; needs no Celery.

``app.include(headrace.contrib.celery.tasks)``, and modules that import ``shared_task`` from here run as they are. Each
``.delay`` and ``.apply_async`` warns of its replacement. There is no canvas: ``.s`` and ``chain`` raise an error.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import update_wrapper
from typing import Any, NoReturn

from headrace.errors import OptionsError
from headrace.model.retry import Retry
from headrace.registry import Tasks
from headrace.tasks.job_handle import Job
from headrace.tasks.task import Task

# Every shared task of the program.
tasks = Tasks()

# Options of Celery's decorator and calls -> ours, with the same value. All others that ours do not know are refused by
# what refuses any option, with a hint.
_OURS = {"soft_time_limit": "timeout", "time_limit": "hard_timeout", "task_id": "request_id", "countdown": "delay"}
# What Headrace does anyway, or has no use for.
_DROPPED = {"acks_late", "acks_on_failure_or_timeout", "reject_on_worker_lost", "track_started", "serializer", "typing",
            "store_errors_even_if_ignored", "compression", "retry", "retry_policy", "send_events", "shadow",
            "retry_jitter"}  # fmt: skip
_RETRIES = {"autoretry_for", "retry_kwargs", "max_retries", "default_retry_delay", "retry_backoff", "retry_backoff_max"}


class SharedTask:
    """A task, called as in Celery. All else is the task's own: ``add.enqueue(1, 2)``, ``add.options(queue="mail")``."""

    def __init__(self, task: Task[..., Any, Any]) -> None:
        self.task = task
        update_wrapper(self, task.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function here."""
        return self.task(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def delay(self, *args: Any, **kwargs: Any) -> Job[Any]:
        """Enqueue it: ``.enqueue(...)``."""
        _warn(f"{self.task.name}.delay(...)", ".enqueue(...)")
        return self.task.enqueue(*args, **kwargs)

    def apply_async(
        self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Job[Any]:
        """Enqueue it: ``.options(...).enqueue(...)``. Raises OptionsError: an option has another name here, or none."""
        _warn(f"{self.task.name}.apply_async(...)", ".options(...).enqueue(...)")
        return self.task.options(**_of_call(options)).enqueue(*args, **(kwargs or {}))

    def s(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Refused: there are no signatures."""
        _no_canvas(f"{self.task.name}.s")

    si = signature = subtask = s


def shared_task(*functions: Callable[..., Any], **options: Any) -> Any:
    """Make a function a task of :data:`tasks`, with Celery's options. ``max_retries``, ``default_retry_delay``,
    ``retry_backoff`` and ``autoretry_for`` become ``retries=Retry(...)``. As in Celery, a task is retried only if it
    says ``autoretry_for``. Raises OptionsError: an option has no counterpart; the text says what to write instead.
    """

    def decorate(function: Callable[..., Any]) -> SharedTask:
        return SharedTask(tasks.task(**_of_task(options))(function))

    return decorate(functions[0]) if functions else decorate


def _of_task(given: Mapping[str, Any]) -> dict[str, Any]:
    options = _ours(given)
    if on := tuple(given.get("autoretry_for", ())):
        wanted = {**given, **given.get("retry_kwargs", {})}
        most, backoff = wanted.get("max_retries", 3), wanted.get("retry_backoff")
        options["retries"] = Retry(
            max=1000 if most is None else most,
            delay=float(backoff or wanted.get("countdown", wanted.get("default_retry_delay", 180))),
            factor=2 if backoff else 1,
            max_delay=float(wanted.get("retry_backoff_max", 600)) if backoff else 3600.0,
            on=on,
        )
    if options.pop("ignore_result", False):
        options["result_ttl"] = 0
    return options


def _of_call(given: Mapping[str, Any]) -> dict[str, Any]:
    options = _ours(given)
    if (at := options.pop("eta", None)) is not None:
        options["at"] = _aware(at)
    if isinstance(ends := options.get("expires"), datetime):
        options["expires"] = _aware(ends) - datetime.now(UTC)
    return options


def _ours(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        _OURS.get(name, name): value
        for name, value in given.items()
        if name not in _DROPPED | _RETRIES and value is not None and value is not False
    }


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _warn(used: str, instead: str) -> None:
    warnings.warn(f"{used} is Celery's way: write {instead}", DeprecationWarning, stacklevel=3)


def _no_canvas(name: str) -> NoReturn:
    raise OptionsError(f"{name}: there is no canvas; write a workflow (docs/workflows.md): flow.run, flow.map")


def chain(*_tasks: Any) -> NoReturn:
    """Refused: in a workflow a task takes the output of the one before."""
    _no_canvas("chain")


def group(*_tasks: Any) -> NoReturn:
    """Refused: a workflow runs a task on each item with ``flow.map``."""
    _no_canvas("group")


def chord(*_tasks: Any) -> NoReturn:
    """Refused: in a workflow a task takes the outputs of all others."""
    _no_canvas("chord")
