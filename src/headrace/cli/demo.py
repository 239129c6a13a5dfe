"""``headrace demo``: a thin door to ``headrace.demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.session import Session

SHARED = ("json", "debug")


def demo(
    session: Session,
    processes: Annotated[int, typer.Option("--processes", metavar="N", min=1, help="Process runners.")] = 2,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Measure only N files, spread over all.")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture", metavar="FILE",
            help="Draw the run there, as .svg, .dot, .mmd or .txt. Default: headrace-demo.svg, if it can be written.",
        ),
    ] = None,
) -> int:  # fmt: skip
    """Measure the Python standard library of this machine with a workflow of a few hundred jobs, then show its cost."""
    from headrace.demo import main

    return main(processes=processes, limit=limit, picture=picture, json=session.output.json)
