"""``headrace demo``: the command; ``demo_run`` loads what a run needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from headrace.cli.arguments import option
from headrace.cli.session import Session


def demo(
    session: Session,
    processes: Annotated[int, option("--processes N", "Process runners.", min=1)] = 2,
    limit: Annotated[int | None, option("--limit N", "Measure only N files, spread over all.", min=1)] = None,
    picture: Annotated[
        Path | None,
        option(
            "--picture FILE",
            "Draw the run there, as .svg, .dot, .mmd or .txt. Default: headrace-demo.svg, if it can be written.",
        ),
    ] = None,
) -> int:
    """Measure the Python standard library of this machine with a workflow of a few hundred jobs, then show its cost."""
    from headrace.cli.demo_run import main

    return main(processes=processes, limit=limit, picture=picture, json=session.output.json)
