"""An exception as structured text: what a job's record keeps of it.

Owns the form of that text. Keeps no exception, frame or traceback, since they would hold the job's memory
(see docs/design/runners.md).
"""

from __future__ import annotations

import contextlib
import os
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from headrace.errors import CancelRequested, Interrupt, JobInterrupted, SoftTimeLimit
from headrace.model.job import MESSAGE_CAP, TRACEBACK_CAP, JobError, error_json
from headrace.model.retry import members_of

# Frames of the worker are nobody's fault: the reader looks for the job's own lines.
_OURS = str(Path(__file__).parents[1])
_PACKAGE = str(Path(__file__).parents[2])
_LIBRARY = str(Path(os.__file__).parent)
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
# Characters of a file's path, from its end.
_PATH = 120
# A runaway recursion has thousands of frames, and only the last ones fit into the cap.
_FRAMES = 100
_UNSAID: dict[type[Interrupt], str] = {
    SoftTimeLimit: "the job exceeded its soft time limit; raise timeout=, or do less in one job",
    CancelRequested: "the job was cancelled while it ran",
    JobInterrupted: "the worker stopped or reloaded, and its shutdown timeout was nearly over",
}


def evidence(
    error: BaseException,
    attempt: int,
    worker: str,
    kind: type[BaseException] | None = None,
    hide: Callable[[str], str] = str,
) -> bytes:
    """JSON of a :class:`headrace.model.job.JobError`; made of any exception, however broken, and never raises.

    Args:
        kind: shown as the type where it is not that of ``error``: the signal that a group of exceptions carries.
        hide: takes out of a text what must not be stored: the values of secret arguments.
    """
    try:
        named = kind or type(error)
        found = JobError(
            type=clean(_name(named)),
            message=clean(hide(_message(error, named)))[:MESSAGE_CAP],
            traceback=clean(hide(_traceback(error)))[-TRACEBACK_CAP:],
            attempt=attempt,
            worker=worker,
            where=clean(_where(error.__traceback__)),
        )
    except BaseException:  # noqa: BLE001 - a class whose very name raises must not take the outcome with it
        found = JobError(type="Exception", message="an exception that cannot be shown", attempt=attempt, worker=worker)
    return error_json(found)


def plain(error: Exception, attempt: int, worker: str, kind: str = "") -> bytes:
    """As :func:`evidence` for what Headrace itself refused: the text says all, a traceback would show our code."""
    text = clean(_message(error, type(error)))[:MESSAGE_CAP]
    return error_json(JobError(type=kind or _name(type(error)), message=text, attempt=attempt, worker=worker))


def fault(error: BaseException, attempt: int, worker: str) -> bytes:
    """As :func:`evidence` for a fault of Headrace's own code in a runner: its frames are shown."""
    text, lines = "Headrace's own code failed in the runner; please report this with its traceback", ""
    with contextlib.suppress(BaseException):
        lines = clean("".join(traceback.format_exception(error)))[-TRACEBACK_CAP:]
    return error_json(JobError(type="Crashed", message=text, traceback=lines, attempt=attempt, worker=worker))


def forget(error: BaseException) -> None:
    """Take the tracebacks off an exception and all that it is linked with.

    An exception and its frames hold each other, and with them every local of the job, until a garbage collection;
    one that a library raises again and again (a module's constant) would collect frames for ever.
    """
    left, seen = [error], set[int]()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        # A class may refuse even this.
        with contextlib.suppress(BaseException):
            one.__traceback__ = None
            left.extend(other for other in (one.__cause__, one.__context__, *members_of(one)) if other is not None)


def _name(kind: type[BaseException]) -> str:
    module = kind.__module__
    return kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"


def _message(error: BaseException, named: type[BaseException]) -> str:
    try:
        text = str(error)
    except BaseException as broken:  # noqa: BLE001 - __str__ is user code and may raise anything
        return f"<no text: {type(error).__name__}.__str__ raised {type(broken).__name__}>"
    if text:
        return text
    return next((unsaid for signal, unsaid in _UNSAID.items() if issubclass(named, signal)), "")


def _traceback(error: BaseException) -> str:
    try:
        whole = traceback.TracebackException(
            type(error), error, _theirs(error.__traceback__), limit=-_FRAMES, compact=True
        )
        left = [whole]
        while left:
            one = left.pop()
            one.stack[:] = [frame for frame in one.stack if not frame.filename.startswith(_OURS)]
            linked = (one.__cause__, one.__context__, *(one.exceptions or () if hasattr(one, "exceptions") else ()))
            left.extend(other for other in linked if other is not None)
        return "".join(whole.format())
    except BaseException as broken:  # noqa: BLE001 - formatting calls __str__, __repr__ and notes of user classes
        return f"<no traceback: formatting it raised {type(broken).__name__}>"


def _where(trace: TracebackType | None) -> str:
    """The innermost line of the application's own code; where none is known as that, of any code but ours."""
    own: TracebackType | None = None
    other: TracebackType | None = None
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if not path.startswith((_PACKAGE, _LIBRARY, "<frozen ")) and not _INSTALLED.search(path):
            own = trace
        elif not path.startswith(_PACKAGE):
            other = trace
        trace = trace.tb_next
    found = own or other
    if found is None:
        return ""
    path, base = found.tb_frame.f_code.co_filename, ""
    with contextlib.suppress(OSError):
        base = f"{Path.cwd()}{os.sep}"
    return f"{path.removeprefix(base)[-_PATH:]}:{found.tb_lineno} in {found.tb_frame.f_code.co_name}"


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame of the job on."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return trace


def clean(text: str) -> str:
    """Text that JSON and MessagePack can carry: a lone surrogate (a file name in odd bytes) is shown escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
