"""Exit codes, and which one an error has. Prints nothing."""

from __future__ import annotations

from enum import IntEnum


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
    """The exit code of a command that ended with ``error``."""
    from headrace import errors

    usage = (UsageFault, errors.OptionsError, errors.CronError, errors.ArgumentError, errors.PayloadTooLarge)
    application = (ApplicationFault, errors.AppImportError, errors.DuplicateTask, errors.DuplicateSchedule)
    table: tuple[tuple[tuple[type[BaseException], ...], ExitCode], ...] = (
        ((KeyboardInterrupt,), ExitCode.INTERRUPTED),
        ((*usage, errors.PictureError), ExitCode.USAGE),
        ((OperationFault,), ExitCode.FAILED),
        ((*application, errors.PreloadError, errors.WorkflowError), ExitCode.APPLICATION),
        # Raised after the connection was made: a URL that cannot even be parsed is a usage fault (see session).
        ((errors.UrlError, errors.ServerError), ExitCode.SERVER),
        ((errors.SettingsError,), ExitCode.USAGE),
        ((errors.ResultTimeout,), ExitCode.WAITING),
        ((errors.HeadraceError,), ExitCode.FAILED),
    )
    return next((code for kinds, code in table if isinstance(error, kinds)), ExitCode.INTERNAL)
