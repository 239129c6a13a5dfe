"""The job of a start as the current one, for a part of its context."""

from __future__ import annotations

from contextvars import Token

from headrace.context import CurrentJob
from headrace.running_job import RunningJob, begin, end


class running:  # noqa: N801 - reads as a verb: with running(job)
    """Make a job the current one for the length of a block. A class, since every job passes here."""

    __slots__ = ("_before", "_job")

    def __init__(self, job: CurrentJob) -> None:
        self._job = job
        self._before: Token[RunningJob] | None = None

    def __enter__(self) -> CurrentJob:
        self._before = begin(self._job)
        return self._job

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            end(self._before)
