"""Whether what jobs log with ``logging`` goes to their own logs, too: what an application says of that."""

from __future__ import annotations

import logging

from headrace.errors import OptionsError


class JobLog:
    """``app.job_log``; runners do what it was told.

    Attributes:
        level: of the least important records that are sent; None: none is.
    """

    def __init__(self) -> None:
        self.level: int | None = None

    def __call__(self, level: int | str = logging.INFO) -> None:
        """Send what jobs log with :mod:`logging` to the logs of these jobs, too: ``job.logs()`` has it.

        Applies in runners, to records of any logger but Headrace's that are made while a job runs, in its thread or
        coroutine, and that their own logger lets through. Values under the names of ``redact`` are hidden.

        Args:
            level: of the least important records that are sent, such as ``logging.WARNING`` or ``"WARNING"``.

        Raises:
            OptionsError: there is no such level.
        """
        found = level if isinstance(level, int) else logging.getLevelNamesMapping().get(level.upper())
        if found is None:
            raise OptionsError(f"{level!r} is no level of logging: give DEBUG, INFO, WARNING, ERROR or CRITICAL")
        self.level = found
