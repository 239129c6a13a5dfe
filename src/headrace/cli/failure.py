"""How a command that failed ends: one readable line, its exit code, a traceback only when asked."""

from __future__ import annotations

import os
import sys
import traceback

from headrace.cli.exit_codes import ExitCode, UsageFault, exit_of
from headrace.cli.output import Output, plain

# Characters of a refusal that are shown.
_FIRST, _LAST = 1_000, 500


def explain(error: BaseException, *, json: bool, debug: bool) -> int:
    """Say why a command ended, once; its exit code."""
    if isinstance(error, FileNotFoundError) and _is_homeless():
        error = UsageFault("the current directory was removed: change to another directory").with_traceback(
            error.__traceback__
        )
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
        print(plain("".join(traceback.format_exception(error))), file=sys.stderr, end="")
    output.fault(text, type(error).__name__, code)
    return code


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
