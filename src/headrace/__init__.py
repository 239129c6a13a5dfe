"""Background jobs and DAG workflows for Python on Redis and Valkey."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.app import Headrace as Headrace
    from headrace.context import CurrentJob as CurrentJob
    from headrace.context import current_job as current_job
    from headrace.errors import HeadraceError as HeadraceError
    from headrace.errors import RateLimited as RateLimited
    from headrace.errors import RetryAfter as RetryAfter
    from headrace.model.activity import EventRecord as EventRecord
    from headrace.model.hidden_values import Secret as Secret
    from headrace.model.job import State as State
    from headrace.model.job_record import AttemptRecord as AttemptRecord
    from headrace.model.job_record import Record as Record
    from headrace.model.limit_rules import Concurrency as Concurrency
    from headrace.model.limit_rules import Rate as Rate
    from headrace.model.retry import Retry as Retry
    from headrace.model.unique_rules import Debounce as Debounce
    from headrace.model.unique_rules import Latest as Latest
    from headrace.model.unique_rules import Throttle as Throttle
    from headrace.model.unique_rules import Unique as Unique
    from headrace.model.workflow import WorkflowRecord as WorkflowRecord
    from headrace.model.workflow import WorkflowState as WorkflowState
    from headrace.pool.pool import Pool as Pool
    from headrace.registry import Tasks as Tasks
    from headrace.schedules.timetables import Cron as Cron
    from headrace.schedules.timetables import Every as Every
    from headrace.settings import Settings as Settings
    from headrace.tasks.job_handle import Job as Job
    from headrace.tasks.limit import Limit as Limit
    from headrace.tasks.submission import Submission as Submission
    from headrace.tasks.submission import UnsentJob as UnsentJob
    from headrace.tasks.task import Task as Task
    from headrace.workflows.definition import Workflow as Workflow
    from headrace.workflows.node import Node as Node
    from headrace.workflows.run import WorkflowRun as WorkflowRun
    from headrace.workflows.scope import Flow as Flow

__version__ = "0.1.0"

# Loaded at first use: a command that asks for help must not wait for the driver.
_HOMES = {
    name: module
    for module, names in {
        "app": "Headrace",
        "context": "CurrentJob current_job",
        "errors": "HeadraceError RateLimited RetryAfter",
        "model.activity": "EventRecord",
        "model.hidden_values": "Secret",
        "model.job": "State",
        "model.job_record": "AttemptRecord Record",
        "model.limit_rules": "Concurrency Rate",
        "model.retry": "Retry",
        "model.unique_rules": "Debounce Latest Throttle Unique",
        "model.workflow": "WorkflowRecord WorkflowState",
        "pool.pool": "Pool",
        "registry": "Tasks",
        "schedules.timetables": "Cron Every",
        "settings": "Settings",
        "tasks.job_handle": "Job",
        "tasks.limit": "Limit",
        "tasks.submission": "Submission UnsentJob",
        "tasks.task": "Task",
        "workflows.definition": "Workflow",
        "workflows.node": "Node",
        "workflows.run": "WorkflowRun",
        "workflows.scope": "Flow",
    }.items()
    for name in names.split()
}

# For a star import, which asks for no name.
__all__ = tuple(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        if name[0] != "_" and (hint := import_module("headrace.model.elsewhere").OF_PACKAGE.get(name)):
            # An import statement drops the text of an AttributeError.
            raise ImportError(f"headrace has no {name!r}: write {hint}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"headrace.{_HOMES[name]}")
    except AttributeError as error:
        # From an import statement Python would make "cannot import name" of it, without its cause.
        raise ImportError(f"headrace.{_HOMES[name]} cannot be imported: {error}") from error
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
