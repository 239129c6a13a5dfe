"""``headrace demo``: a thin door to ``headrace.demo``."""

from __future__ import annotations

import importlib

from headrace.cli.session import Session

SHARED = ("json", "debug")


def demo(session: Session) -> int | None:
    """Measure the Python standard library of this machine with a few hundred real jobs, then show what that cost."""
    code: int | None = importlib.import_module("headrace.demo").main(json=session.output.json)
    return code
