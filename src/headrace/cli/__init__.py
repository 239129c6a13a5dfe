"""The command line: the only code that prints. Its modules import what they need when a command runs, so that
``headrace --help`` is quick; nothing below may import it.

``program`` assembles the commands and turns errors into exit codes; ``session`` holds the options that commands share;
``output`` is every way to print; the others are a group of commands each.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command that ``sys.argv``, or ``arguments``, names, and leave with its exit code; see ``session``."""
    _open_streams()
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        # Else an error of what is still to be written comes when no code can report it any more.
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except OSError as error:
        from headrace.cli.session import explain

        code = explain(error, json="--json" in sys.argv, debug="--debug" in sys.argv)
    try:
        sys.stderr.flush()
    except OSError:
        from headrace.cli.output import discard

        discard(sys.stderr)
    # Else Python searches all that was imported for garbage before it leaves: a fifth of what a short command costs.
    gc.freeze()
    sys.exit(code)


def _open_streams() -> None:
    """A standard stream that was closed has no reader: the next file or socket must not get its number."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest number that is free is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, open(descriptor, "w" if descriptor else "r", closefd=False))  # noqa: SIM115


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["worker"]:
        # The parser has no option whose value may be left out.
        arguments = ["--reload=files" if word == "--reload" else word for word in arguments]
        from headrace.worker import child_process

        # Until the process that it becomes can hear them: some mean something to a worker, and would end a command.
        child_process.hold_back()
    if arguments[:1] == ["health"]:
        from headrace.cli.probe import quick

        if (code := quick(arguments[1:])) is not None:
            return code
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        print(f"headrace: the command line needs {missing[0]}: pip install 'headrace[cli]'", file=sys.stderr)
        return 2
    from headrace.cli import commands

    return commands.run(arguments)
