"""``headrace demo``: a thin door to ``headrace.demo``."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.session import Session

SHARED = ("json", "debug")


def demo(
    session: Session,
    processes: Annotated[int, typer.Option("--processes", metavar="N", min=1, help="Process runners.")] = 2,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Measure so many files only, spread over all.")
    ] = None,
) -> int:
    """Measure the Python standard library of this machine with a few hundred real jobs, then show what that cost."""
    from headrace.demo import main

    return main(processes=processes, limit=limit, json=session.output.json)
