"""A progress bar for what may take long, and mostly does not."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.cli.output import Output

# Seconds after which a person who waits wants to see something move.
PATIENCE = 1.0


@contextmanager
def bar_of(output: Output, total: int | None, passing: str = "") -> Generator[Callable[[int], None]]:
    """A bar, on a terminal at once. Call what it gives with how many are done.

    Args:
        total: None: not known.
        passing: what is counted; then the bar tells the time that is over, not the one that is left, and goes at the
            end.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    tail: tuple[Any, ...] = (TextColumn(passing), TimeElapsedColumn()) if passing else (TimeRemainingColumn(),)
    columns = (BarColumn(), MofNCompleteColumn(), *tail)
    console = output.console(sys.stderr)
    with Progress(*columns, console=console, transient=bool(passing), disable=_hidden(output)) as progress:
        bar = progress.add_task("", total=total)
        yield lambda done: progress.update(bar, completed=done)


@contextmanager
def late_bar(output: Output, total: int | None = None, noun: str = "jobs") -> Generator[Callable[[int], None]]:
    """The same for what is mostly quick: a terminal shows it from its second second on."""
    begins = time.monotonic() + PATIENCE
    shown: list[Callable[[int], None]] = []
    with ExitStack() as until_the_end:

        def tell(done: int) -> None:
            if not shown and time.monotonic() >= begins and not _hidden(output):
                shown.append(until_the_end.enter_context(bar_of(output, total, noun)))
            for show in shown:
                show(done)

        yield tell


def _hidden(output: Output) -> bool:
    return output.json or not sys.stderr.isatty()
