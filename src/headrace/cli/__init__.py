"""The command line: the only code that prints. Its modules import what they need when a command runs, so that
``headrace --help`` is quick; nothing below may import it.

``program`` assembles the commands and turns errors into exit codes; ``session`` holds the options that commands share;
``output`` is every way to print; the others are a group of commands each.
"""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command that ``sys.argv`` names, and leave with its exit code (see ``headrace.cli.exits``)."""
    try:
        from headrace.cli import program
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        sys.exit(f"headrace: the command line needs {error.name}: pip install 'headrace[cli]'")
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(program.run(sys.argv[1:]))
