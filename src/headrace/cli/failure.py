"""How a command that failed ends: one readable line, its exit code, a traceback only when asked."""

from __future__ import annotations

import errno
import os
import sys
import traceback

from headrace.cli.exit_codes import ExitCode, OperationFault, UsageFault, exit_of
from headrace.cli.output import Output, aside, discard, plain

# A reader that is gone, a full disk, a quota, a limit of a file's size, a terminal that hung up.
_NO_ROOM = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

# Characters of a refusal that are shown.
_FIRST, _LAST = 1_000, 500


def explain(error: BaseException, *, json: bool, debug: bool) -> int:
    """Say why a command ended, once; its exit code."""
    if isinstance(error, FileNotFoundError) and _is_homeless():
        error = UsageFault("the current directory was removed: change to another directory").with_traceback(
            error.__traceback__
        )
    if isinstance(error, MemoryError):
        error = OperationFault("there is no memory left, or its limit is reached (ulimit -a, the control group)")
    if (unwritten := _unwritten(error)) is not None:
        # What is kept would raise again.
        discard(sys.stdout)
        if isinstance(error, BrokenPipeError):
            return ExitCode.PIPE
        error = unwritten
    code = exit_of(error)
    if code is ExitCode.INTERRUPTED:
        return code
    return last_word(error, _text(error), code, json=json, debug=debug)


def last_word(error: BaseException, text: str, code: ExitCode, *, json: bool, debug: bool) -> int:
    output = Output(json=json)
    if code is ExitCode.USAGE and (left := len(text) - _FIRST - _LAST) > 0:
        # What was given may be a whole file; the end says what would be right.
        text = f"{text[:_FIRST]} ({left:,} characters left out) {text[-_LAST:]}"
    if debug:
        aside(plain("".join(traceback.format_exception(error)).rstrip("\n")))
    output.fault(text, type(error).__name__, code)
    return code


def _unwritten(error: BaseException) -> OperationFault | None:
    """The fault of a stream that takes nothing more: such an error names no file, as those of files do."""
    if not isinstance(error, OSError) or error.filename is not None or error.errno not in _NO_ROOM:
        return None
    fault = OperationFault(f"the output cannot be written: {error.strerror}; what was printed is not whole")
    return fault.with_traceback(error.__traceback__)


def _is_homeless() -> bool:
    """Whether the current directory was removed, so that whatever is named in relation to it cannot be found."""
    try:
        os.getcwd()  # noqa: PTH109 - Path.cwd is the same
    except FileNotFoundError:
        return True
    return False


def _text(error: BaseException) -> str:
    from headrace.errors import JobUnsuccessful

    text = str(error) or type(error).__name__
    if isinstance(error, JobUnsuccessful):
        return f"{text.splitlines()[0]}; headrace jobs show {error.id} shows all that is known"
    if exit_of(error) is ExitCode.INTERNAL:
        return f"internal error: {type(error).__name__}: {text}; please report it with what --debug shows"
    return text
