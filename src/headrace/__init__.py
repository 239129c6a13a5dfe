"""Background jobs and DAG workflows for Python on Redis and Valkey."""

from headrace.app import Headrace as Headrace
from headrace.context import CurrentJob as CurrentJob
from headrace.context import current_job as current_job
from headrace.errors import HeadraceError as HeadraceError
from headrace.handle import Job as Job
from headrace.job import Record as Record
from headrace.job import State as State
from headrace.retry import Retry as Retry
from headrace.settings import Settings as Settings
from headrace.task import Task as Task

__version__ = "0.1.0"
