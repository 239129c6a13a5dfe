"""Background jobs and DAG workflows for Python on Redis and Valkey."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.app import Headrace as Headrace
    from headrace.context import CurrentJob as CurrentJob
    from headrace.context import current_job as current_job
    from headrace.definition import Workflow as Workflow
    from headrace.errors import HeadraceError as HeadraceError
    from headrace.flow import Flow as Flow
    from headrace.flow_record import WorkflowRecord as WorkflowRecord
    from headrace.handle import Job as Job
    from headrace.job import State as State
    from headrace.node import Node as Node
    from headrace.pool.pool import Pool as Pool
    from headrace.record import AttemptRecord as AttemptRecord
    from headrace.record import Record as Record
    from headrace.registry import Tasks as Tasks
    from headrace.retry import Retry as Retry
    from headrace.run import WorkflowRun as WorkflowRun
    from headrace.settings import Settings as Settings
    from headrace.submission import Submission as Submission
    from headrace.task import Task as Task
    from headrace.unsent_job import UnsentJob as UnsentJob
    from headrace.workflow import WorkflowState as WorkflowState

__version__ = "0.1.0"

# Loaded at first use: a command that asks for help must not wait for the driver.
_HOMES = {
    "Headrace": "app",
    "CurrentJob": "context",
    "current_job": "context",
    "Workflow": "definition",
    "HeadraceError": "errors",
    "Flow": "flow",
    "Job": "handle",
    "Pool": "pool.pool",
    "AttemptRecord": "record",
    "Record": "record",
    "State": "job",
    "Node": "node",
    "Retry": "retry",
    "WorkflowRun": "run",
    "Settings": "settings",
    "Submission": "submission",
    "Task": "task",
    "UnsentJob": "unsent_job",
    "Tasks": "registry",
    "WorkflowRecord": "flow_record",
    "WorkflowState": "workflow",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"headrace.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
