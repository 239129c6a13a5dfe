"""What jobs log with ``logging``, sent to their own logs (``app.job_log``)."""

from __future__ import annotations

import logging

from headrace.context import current_job
from headrace.errors import NoCurrentJob
from headrace.model.redaction import Redactor


class JobLogHandler(logging.Handler):
    """Gives each record of a running job to ``current_job().log``; others pass it by."""

    def __init__(self, level: int, redactor: Redactor) -> None:
        super().__init__(level)
        self._redactor = redactor
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] == "headrace":
            return
        try:
            current_job().log(self._redactor.text(self.format(record)))
        except NoCurrentJob:
            return
        except Exception:  # noqa: BLE001 - as in any handler: a record that cannot be formatted costs no job
            self.handleError(record)
