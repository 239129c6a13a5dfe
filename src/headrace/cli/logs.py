"""What a worker's log lines look like: text for people, JSON lines for programs; both on stderr."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO, cast

from headrace.cli.output import entry, one_line, to_json
from headrace.model.hidden_values import NAMES, Redactor, without
from headrace.running_job import job_if_any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from headrace.context import CurrentJob

# What every record has: anything else on it was given by `extra=`, and is worth a field.
_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}

_SECRET_LENGTH = 4  # shorter ones would hide innocent words of the log


def configure(form: str, level: int, secrets: Collection[str] = (), hidden: Iterable[str] = NAMES) -> None:
    """Send the log to stderr. Headrace's own lines always; those of the application too, unless it configured logging
    itself. ``form``: ``text`` or ``json``, as the setting ``log`` has it. ``secrets``: texts that no line may contain,
    such as the password of the server's URL. ``hidden``: parts of names whose values no line may contain.
    """
    handler = LineHandler(sys.stderr)
    handler.setFormatter(LogFormatter(json_line if form == "json" else text_line, secrets, Redactor(hidden)))
    ours, root = logging.getLogger("headrace"), logging.getLogger()
    if not root.handlers:
        root.addHandler(handler)
        root.setLevel(level)
        # A command shows what the library warns of as its remarks until it has a log.
        ours.handlers.clear()
        ours.propagate = True
    else:
        ours.handlers[:] = [handler]
        ours.propagate = False
    ours.setLevel(level)
    # logging.config.dictConfig, which frameworks call, disables the loggers that exist already.
    for name, logger in logging.root.manager.loggerDict.items():
        if name.partition(".")[0] == "headrace" and isinstance(logger, logging.Logger):
            logger.disabled = False
    logging.captureWarnings(capture=True)


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes each record on a line of its own, also where a job has begun a line and not ended it."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            self.stream.flush()
            if getattr(self.stream.buffer, "mid_line", False):
                self.stream.write("\n")
        super().emit(record)


class LogFormatter(logging.Formatter):
    def __init__(
        self,
        shape: Callable[[logging.LogRecord, str, dict[str, Any], str], str],
        secrets: Collection[str],
        redactor: Redactor | None = None,
    ) -> None:
        super().__init__()
        self._shape = shape
        self._redactor = redactor or Redactor()
        # Made in the supervisor, before it forks: what the worker is called in the store and in errors.
        self._worker = f"{socket.gethostname()}:{os.getpid()}"
        self._secrets = [text for text in secrets if len(text) >= _SECRET_LENGTH]

    def format(self, record: logging.LogRecord) -> str:
        parts = [self.formatException(record.exc_info)] if record.exc_info else []
        parts += [self.formatStack(record.stack_info)] if record.stack_info else []
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        # That of a job came as text from another process; its facts stand in the words of the line already.
        if trace := fields.pop("traceback", None):
            parts.append(str(trace).rstrip())
        facts, code = fields.pop("facts", None), fields.pop("code", None)
        if self._shape is json_line:
            own = ({"code": code} if code else {}) | {"worker": self._worker} | _job()
            own |= cast("dict[str, Any]", facts) if isinstance(facts, dict) else {}
        else:
            # Of the worker's own lines people need no code.
            shown = code and not record.name.startswith("headrace")
            own = _job("job", "task", "attempt") | ({"code": code} if shown else {})
        # Own fields stand first, and fields of ``extra=`` with their names replace none of them.
        fields = own | fields | own
        hide = self._redactor
        text = self._shape(record, hide.text(record.getMessage()), hide.value(fields), hide.text("\n".join(parts)))
        return without(self._secrets, _of_job(text))


def text_line(record: logging.LogRecord, message: str, fields: dict[str, Any], trace: str) -> str:
    """``2026-11-21 22:36:00.123 INFO    the message job=… task=…``, in local time; further lines are indented."""
    at = datetime.fromtimestamp(record.created, UTC).astimezone()
    where = "" if record.name.startswith("headrace") else f"{record.name}: "
    more = "".join(f" {one_line(name)}={one_line(value)}" for name, value in fields.items())
    time = f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}"
    line = f"{time} {record.levelname:<7} {where}{message}{more}"
    return entry(f"{line}\n{trace}" if trace else line)


def json_line(record: logging.LogRecord, message: str, fields: dict[str, Any], trace: str) -> str:
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    own: dict[str, Any] = {
        "time": at,
        "level": record.levelname.lower(),
        "event": message,
        "logger": record.name,
        "pid": record.process,
    }
    line = own | fields | own
    if trace:
        line["traceback"] = trace
    return to_json(line)


def _of_job(text: str) -> str:
    job = cast("CurrentJob | None", job_if_any())
    return text if job is None else job.hide(text)


def _job(*names: str) -> dict[str, Any]:
    job = cast("CurrentJob | None", job_if_any())
    if job is None:
        return {}
    fields = job.log_fields
    return {name: fields[name] for name in names if name in fields} if names else fields | _span()


def _span() -> dict[str, str]:
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    span = trace.get_current_span().get_span_context()
    return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"} if span.is_valid else {}
