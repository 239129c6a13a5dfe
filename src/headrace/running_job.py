"""The job that runs here, as the code sees it that jobs call: what they make inherits from it."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from datetime import datetime
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from headrace.errors import NoCurrentJob, WaitRefused
from headrace.model.headers import NO_HEADERS, with_correlation
from headrace.settings import Duration


class RunningJob(Protocol):
    """What tasks and workflows ask of the job that calls them. ``passed_on``: headers of jobs that it makes."""

    passed_on: Mapping[str, str] | None

    @property
    def id(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def correlation(self) -> str: ...
    @property
    def tick(self) -> datetime | None: ...
    @property
    def snoozes(self) -> int: ...
    @property
    def workflow(self) -> object:
        """The ``Flow`` that adds nodes to its workflow."""
        ...

    def log(self, text: str) -> None: ...
    def snooze(self, delay: Duration) -> NoReturn: ...


J = TypeVar("J", bound=RunningJob)

_running: ContextVar[RunningJob] = ContextVar("headrace_current_job")
# The module of an application that headrace imports now; empty: none.
_imported: ContextVar[str] = ContextVar("headrace_imported_module", default="")

begin = _running.set
end = _running.reset
"""Make a job the current one for the rest of this context; and undo that, given what it returned."""


class running(Generic[J]):  # noqa: N801 - reads as a verb: with running(job)
    """Make a job the current one for the length of a block. A class, since every job passes here."""

    __slots__ = ("_before", "_job")

    def __init__(self, job: J) -> None:
        self._job = job
        self._before: Token[RunningJob] | None = None

    def __enter__(self) -> J:
        self._before = begin(self._job)
        return self._job

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            end(self._before)


def job_if_any() -> RunningJob | None:
    return _running.get(None)


def running_job() -> RunningJob:
    """The job whose code calls this. Raises NoCurrentJob: no job runs here."""
    try:
        return _running.get()
    except LookupError:
        raise NoCurrentJob(
            "no job runs here: current_job() works in a task that a worker runs, and in threads to which it passed its "
            "context (asyncio.to_thread does)"
        ) from None


def inherited_headers() -> Mapping[str, str]:
    job = _running.get(None)
    if job is None:
        return NO_HEADERS
    if job.passed_on is None:
        job.passed_on = with_correlation(job.headers, job.correlation)
    return job.passed_on


@contextmanager
def importing(module: str) -> Generator[None]:
    before = _imported.set(module)
    try:
        yield
    finally:
        _imported.reset(before)


def on_event_loop() -> bool:
    # Not imported for this: where it was never loaded, none runs.
    events: Any = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None  # noqa: SLF001 - documented, for libraries


def check_wait(verb: str, pair: str = "", *, accept: str = "allow_wait=True") -> None:
    """Refuse a wait for other work where it does harm: in a job, on an event loop, and while a worker imports its code.
    ``pair``: the asynchronous verb for a caller that would block its thread; empty for the asynchronous ones.
    ``accept``: how a caller in a job waits anyway.
    """
    job = _running.get(None)
    if module := _imported.get():
        raise WaitRefused(
            f"{verb} while headrace imports the module {module}: the worker that is to run the job would wait for "
            f"itself. Keep what a program does under `if __name__ == '__main__':`, or accept it with {accept}"
        )
    if job is not None:
        raise WaitRefused(
            f"{verb} in job {job.id} of {job.task} would keep a runner waiting, for ever if all of them wait like "
            f"this: make both nodes of a workflow (flow.run delivers the result), or accept it with {accept}"
        )
    if pair and on_event_loop():
        raise WaitRefused(f"{verb} would block the event loop: {pair}, or accept it with allow_wait=True")
