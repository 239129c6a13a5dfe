"""How a failed command ends: one readable line, an exit code, a traceback only on request. Prints nothing."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from enum import IntEnum

from headrace.cli.output import Output, aside, discard, plain


class ExitCode(IntEnum):
    """What a script may rely on; the reference page lists the same words."""

    OK = 0
    FAILED = 1
    USAGE = 2
    SERVER = 3
    APPLICATION = 4
    WAITING = 5
    INTERNAL = 70
    INTERRUPTED = 130
    PIPE = 141

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "the operation failed: no such job or workflow, the job failed, a private server that does not "
    "run, no room for the output, no memory left",
    ExitCode.USAGE: "a wrong option, argument, setting or URL; nothing was done",
    ExitCode.SERVER: "the server is unreachable or cannot be used: wrong password, too old, may drop keys, full, "
    "another schema",
    ExitCode.APPLICATION: "the application cannot be imported or preloaded, has no task for this worker, or has a "
    "workflow that is invalid or whose definition raises",
    ExitCode.WAITING: "the job had not ended within `--timeout`; it continues",
    ExitCode.INTERNAL: "a fault in Headrace itself; `--debug` shows the traceback",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C",
    ExitCode.PIPE: "the reader of the output exited (as `head` does)",
}


class UsageFault(Exception):
    """The command was given something that cannot be used; the text says what would be right."""


class OperationFault(Exception):
    """What was asked for could not be done; the text says why."""


class ApplicationFault(Exception):
    """The application cannot be worked with; the text says what to do."""


def exit_of(error: BaseException) -> ExitCode:
    from headrace import errors

    usage = (UsageFault, errors.OptionsError, errors.ArgumentError, errors.PayloadTooLarge)
    application = (ApplicationFault, errors.AppImportError, errors.DuplicateName)
    table: tuple[tuple[tuple[type[BaseException], ...], ExitCode], ...] = (
        ((KeyboardInterrupt,), ExitCode.INTERRUPTED),
        (usage, ExitCode.USAGE),
        ((OperationFault,), ExitCode.FAILED),
        ((*application, errors.PreloadError, errors.WorkflowError), ExitCode.APPLICATION),
        # Raised after the connection was made: a URL that cannot even be parsed is a usage fault (see session).
        ((errors.UrlError, errors.ServerError), ExitCode.SERVER),
        ((errors.SettingsError,), ExitCode.USAGE),
        ((errors.ResultTimeout,), ExitCode.WAITING),
        ((errors.HeadraceError,), ExitCode.FAILED),
    )
    return next((code for kinds, code in table if isinstance(error, kinds)), ExitCode.INTERNAL)


# A reader that is gone, a full disk, a quota, a limit of a file's size, a terminal that hung up.
_NO_ROOM = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

# Characters of a refusal that are shown.
_FIRST = 1_000
_LAST = 500


def explain(error: BaseException, *, json: bool, debug: bool) -> int:
    if isinstance(error, FileNotFoundError) and _is_homeless():
        error = UsageFault("the current directory was removed: change to another directory").with_traceback(
            error.__traceback__
        )
    if isinstance(error, MemoryError):
        error = OperationFault("there is no memory left, or its limit is reached (ulimit -a, the control group)")
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        reached = OperationFault("the limit of open files is reached: raise it, such as with ulimit -n 1024")
        error = reached.with_traceback(error.__traceback__)
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
        # The value may be a whole file; the end says what would be right.
        text = f"{text[:_FIRST]} ({left:,} characters left out) {text[-_LAST:]}"
    if debug:
        aside(plain("".join(traceback.format_exception(error)).rstrip("\n")))
    output.fault(text, type(error).__name__, code)
    return code


def _unwritten(error: BaseException) -> OperationFault | None:
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


def confirm(deed: str, refused: str, warning: str = "") -> None:
    """Go on only if the person at the terminal agrees, and raise ``refused`` after a no. ``deed``: what is asked about,
    such as ``delete 3 jobs of mail for good``. ``warning``: a sentence behind the question.
    """
    if not sys.stdin.isatty():
        raise UsageFault(f"this would {deed}: add --yes if that is meant")
    if not agreed(f"{deed[0].upper()}{deed[1:]}?{warning and ' ' + warning}"):
        raise OperationFault(refused)


def agreed(question: str) -> bool:
    print(f"{plain(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
