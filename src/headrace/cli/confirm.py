"""Asks the person at the terminal before what cannot be undone."""

from __future__ import annotations

import sys

from headrace.cli.exit_codes import OperationFault, UsageFault
from headrace.cli.output import plain


def confirm(deed: str, refused: str, warning: str = "") -> None:
    """Go on only if the person at the terminal agrees, and raise ``refused`` after a no.

    Args:
        deed: what is asked about, such as ``delete 3 jobs of mail for good``.
        warning: a sentence behind the question.
    """
    if not sys.stdin.isatty():
        raise UsageFault(f"this would {deed}: add --yes if that is meant")
    if not agreed(f"{deed[0].upper()}{deed[1:]}?{warning and ' ' + warning}"):
        raise OperationFault(refused)


def agreed(question: str) -> bool:
    """Ask on stderr; whether the answer is yes."""
    print(f"{plain(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
